"""The `Rig` of each module, cleared between tests. Each test ends with the observer's verdict.

A module with faults that do not heal uses `own_rig`, one cluster per test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from tests.faults.fault_cluster import SMALL, Rig, open_rig

_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.fixture(scope="module")
def module_rig(
    cluster_tools: Tools, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """The `OPTIONS` of a module configure its cluster."""
    folder = tmp_path_factory.mktemp("rig")
    options = getattr(request.module, "OPTIONS", SMALL)
    with open_rig(LocalCluster(folders.own_folder("rig")), folder, options) as rig:
        yield rig


@pytest.fixture
def rig(
    module_rig: Rig,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """A small cluster shared by the module, with a webhook but no other Fairgate process."""
    yield from judged(module_rig, request, tmp_path, record_property)


@pytest.fixture
def own_rig(
    cluster_tools: Tools,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """A small cluster for this test only."""
    with open_rig(LocalCluster(folders.own_folder("own-rig")), tmp_path) as rig:
        yield from judged(rig, request, tmp_path, record_property)


def judged(
    rig: Rig,
    request: pytest.FixtureRequest,
    folder: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    rig.begin(folder)
    try:
        yield rig
        if request.node.stash.get(_passed, False):
            rig.verdict()
    finally:
        for what, seconds in rig.times.items():
            record_property(what, seconds)
        print(f"\n{request.node.name} took {json.dumps(rig.times)}")
        rig.clear()
