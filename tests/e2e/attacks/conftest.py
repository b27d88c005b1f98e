"""The attacks run mode by mode, each on a cluster of its own; the table is written at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.dev.tools import Tools
from tests.e2e.attacks.ground import MODES, Ground
from tests.e2e.attacks.ground import ground as entered
from tests.e2e.attacks.outcomes import Outcomes


@pytest.fixture(scope="session", params=MODES)
def ground(request: pytest.FixtureRequest, cluster_tools: Tools) -> Iterator[Ground]:
    """A cluster in one mode. Every test runs in all of them, unless it says otherwise."""
    with entered(request.param) as place:
        yield place


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Outcomes]:
    """Where every attack tells what became of it."""
    found = Outcomes()
    yield found
    if found.is_whole:
        found.write()
