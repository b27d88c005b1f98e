"""Runs the attacks mode by mode, each on its own cluster, and writes the table at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.devcluster.binaries import Tools
from tests.e2e.attacks.attack_cluster import MODES, AttackEnvironment
from tests.e2e.attacks.attack_cluster import env as entered
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import Stage


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group all tests of a mode, including those that run only in some modes."""
    places = [place for place, item in enumerate(items) if _mode(item) is not None]
    in_order = sorted((items[place] for place in places), key=lambda item: MODES.index(_mode(item)))
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the cluster after the last attack, so that it takes no CPU time of other tests."""
    yield
    place = getattr(item, "funcargs", {}).get("env")
    if place is not None and (nextitem is None or nextitem.path.parent != item.path.parent):
        place.cluster.down()


def _mode(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("env") if callspec else None


@pytest.fixture(scope="session", params=MODES)
def env(request: pytest.FixtureRequest, cluster_tools: Tools) -> Iterator[AttackEnvironment]:
    """A cluster in one mode. Tests run in every mode unless `only` restricts them."""
    with entered(request.param) as place:
        yield place


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Outcomes]:
    """Collects the outcome of every attack."""
    found = Outcomes()
    yield found
    if found.is_whole:
        found.write()


@pytest.fixture
def stage(env: AttackEnvironment, tmp_path: Path) -> Iterator[Stage]:
    """Objects that one test creates in the cluster and removes at its end."""
    stage = Stage(env.cluster, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()
