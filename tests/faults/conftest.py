"""The `Rig` of the fault tests, cleared between tests. Each test ends with the observer's verdict.

Modules share a cluster, because a start takes more CPU time than most tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from tests.faults.fault_cluster import Rig, open_rig

_passed = pytest.StashKey[bool]()
_shared = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the shared cluster after the last fault test, so that it takes no time of other tests."""
    yield
    is_last = nextitem is None or nextitem.path.parent != item.path.parent
    if is_last and (shared := item.config.stash.get(_shared, None)):
        shared.close()


@pytest.fixture(scope="session")
def shared(
    cluster_tools: Tools, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Rig]]:
    """Return the rig of all modules without `OPTIONS`. The first such module starts it."""
    rigs: list[Rig] = []
    with ExitStack() as stack:
        pytestconfig.stash[_shared] = stack

        def rig() -> Rig:
            if not rigs:
                cluster = LocalCluster(folders.own_folder("rig"))
                rigs.append(stack.enter_context(open_rig(cluster, tmp_path_factory.mktemp("rig"))))
            return rigs[0]

        yield rig


@pytest.fixture(scope="module")
def module_rig(
    shared: Callable[[], Rig],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rig]:
    """The shared rig. A module with `OPTIONS` has a cluster of its own, with these options."""
    options = getattr(request.module, "OPTIONS", None)
    if options is None:
        rig = shared()
        rig.end_programs()  # webhooks of the last module
        yield rig
        return
    folder = tmp_path_factory.mktemp("rig")
    with open_rig(LocalCluster(folders.own_folder("own-rig")), folder, options) as rig:
        yield rig


@pytest.fixture
def rig(
    module_rig: Rig,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """A small cluster, with a webhook but no other Fairgate process."""
    yield from judged(module_rig, request, tmp_path, record_property)


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
