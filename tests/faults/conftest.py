"""The `Rig` of the fault tests, cleared between tests. Each test ends with the observer's verdict.

Modules share a cluster, because a start takes more CPU time than most tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.nodes import NodeGroup, create_nodes, ready_nodes
from tests.faults.fault_cluster import Rig, open_rig

_passed = pytest.StashKey[bool]()
_shared = pytest.StashKey[ExitStack]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
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
def shared_rig(
    cluster_tools: Tools, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """The rig of all modules."""
    with ExitStack() as stack:
        pytestconfig.stash[_shared] = stack
        cluster = LocalCluster(folders.own_folder("rig"))
        yield stack.enter_context(open_rig(cluster, tmp_path_factory.mktemp("rig")))


@pytest.fixture(scope="module")
def module_rig(shared_rig: Rig) -> Rig:
    """The shared rig, without the webhooks of the last module."""
    shared_rig.end_programs()
    return shared_rig


@pytest.fixture(scope="module")
def add_nodes(module_rig: Rig) -> Iterator[Callable[[NodeGroup], None]]:
    """Return a function that adds nodes to the shared rig for the tests of a module."""
    added: list[str] = []

    def add(group: NodeGroup) -> None:
        with module_rig.admin() as api:
            there = ready_nodes(api)
            added.extend(name for name in group.names() if name not in there)
            create_nodes(api, group)
            module_rig.until("the nodes are ready", lambda: {*added} <= ready_nodes(api))

    yield add
    with module_rig.admin() as api:
        for name in added:
            api.call("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture
def rig(
    module_rig: Rig,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """A small cluster, with a webhook but no other Fairgate process."""
    rig = module_rig
    rig.begin(tmp_path)
    try:
        yield rig
        if request.node.stash.get(_passed, False):
            rig.verdict()
    finally:
        for what, seconds in rig.times.items():
            record_property(what, seconds)
        print(f"\n{request.node.name} took {json.dumps(rig.times)}")
        rig.clear()
