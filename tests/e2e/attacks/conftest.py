"""The attacks run mode by mode, each on a cluster of its own; the table is written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.dev.tools import Tools
from tests.e2e.attacks.ground import MODES, Ground
from tests.e2e.attacks.ground import ground as entered
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.stage import Stage


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let all tests of a mode follow each other, those too that run in some modes only."""
    places = [place for place, item in enumerate(items) if _mode(item) is not None]
    in_order = sorted((items[place] for place in places), key=lambda item: MODES.index(_mode(item)))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


def _mode(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("ground") if callspec else None


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


@pytest.fixture
def stage(ground: Ground, tmp_path: Path) -> Iterator[Stage]:
    """What one test puts into that cluster, and takes out of it again."""
    stage = Stage(ground.cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()
