"""Resources that tests share: one bare cluster, one cluster with Fairgate, one Redis.

The programs of a cluster are found or built before the first test, outside the time limit of any
test. If they are unavailable, tests that need them are skipped, and the summary reports it. If
REQUIRE_CLUSTER=1 is set, these tests fail.
"""

from __future__ import annotations

import gc
import os
import signal
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastapi.dependencies.models
import pytest
from hypothesis import settings
from hypothesis.internal.charmap import intervals_from_codec

from app.core.errors import FairgateError, ToolMissing
from app.devcluster import binaries
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.node.real_node import RealNode
from app.devcluster.processes import Processes
from app.devcluster.progress import ConsoleProgress
from app.devcluster.redis_server import given_redis, start_redis
from app.devcluster.state_files import FolderKind
from tests.support.fork_server import forked
from tests.support.xdist_scheduler import BySetUp, place_of

REAL = ("integration", "contract", "e2e", "faults")
SHARED = "fairgate_cluster"
SKIPPED = "no cluster on this machine"

gc.disable()  # until all tests are collected: imports and collection leave hardly any garbage

settings.register_profile("fairgate", deadline=None)  # no test asserts how long it takes
settings.load_profile("fairgate")

# An API server uses twice the memory, and its start a quarter less CPU time.
os.environ.setdefault("GOGC", "400")

_reason: pytest.StashKey[str | None] = pytest.StashKey()
_forgotten: pytest.StashKey[bool] = pytest.StashKey()


def pytest_configure() -> None:
    def interrupt(number: int, frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    # Without a handler, SIGTERM would end the process before the fixtures stop their programs.
    signal.signal(signal.SIGTERM, interrupt)
    # A program in the background of a shell ignores SIGINT, and its children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    same = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if same:  # xdist would silently run only one per name
        raise pytest.UsageError(f"several tests have one name: {', '.join(same)}")
    # A shared cluster that waits for its next test takes a tenth of a core.
    shares = {item.path for item in items if SHARED in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (place_of(item.nodeid), item.path in shares))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    intervals_from_codec("utf-8")  # it is stored; otherwise each xdist worker spends 4 s on it


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySetUp:
    return BySetUp(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # each full collection would visit the objects of 9000 tests
    gc.set_threshold(50_000, 20, 50)  # most objects of a test are freed without a collection
    gc.enable()
    session.config.stash[_reason] = None
    if session.config.option.collectonly or not any(map(_needs_cluster, session.items)):
        return
    try:
        if reason := binaries.missing_reason():
            raise ToolMissing(reason)
        binaries.find(ConsoleProgress())
    except FairgateError as error:
        session.config.stash[_reason] = str(error)
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":  # only the first xdist worker
        for folder in folders.abandoned():
            node = RealNode(folder)
            (node if node.is_node else LocalCluster(folder)).down()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the objects of tests without a cluster before the first test with one.

    A full garbage collection of a million objects stops this process for seconds, and with it the
    proxies between the programs of a cluster. Requests then time out.
    """
    if _needs_cluster(item) and not item.config.stash.get(_forgotten, False):
        item.config.stash[_forgotten] = True
        _forget_apps()
        gc.collect()
        gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        _forget_apps()


def _forget_apps() -> None:
    """Clear caches of FastAPI that keep each app of a test alive."""
    for each in vars(fastapi.dependencies.models).values():
        if hasattr(each, "cache_clear"):
            each.cache_clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    count = sum(SKIPPED in str(report.longrepr) for report in skipped)
    if count:
        reason = terminalreporter.config.stash.get(_reason, None)
        terminalreporter.section("NOT TESTED ON A REAL CLUSTER", sep="!", red=True)
        terminalreporter.line(f"{count} tests were skipped: {SKIPPED}. {reason}")


@pytest.fixture(scope="session")
def cluster_tools(request: pytest.FixtureRequest) -> Iterator[binaries.Tools]:
    """The programs of a cluster. If missing, skip the test, or fail with REQUIRE_CLUSTER."""
    reason = request.config.stash.get(_reason, None) or binaries.missing_reason()
    if reason is None:
        with forked():
            yield binaries.find()
        return
    if os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0"):
        pytest.fail(f"A cluster is required: {reason}", pytrace=False)
    pytest.skip(f"{SKIPPED}: {reason}")


@pytest.fixture(scope="session")
def cluster(cluster_tools: binaries.Tools) -> Iterator[LocalCluster]:
    """A control plane with two nodes of 8 GPUs, and Redis; no Fairgate.

    A test may `install()` the chart. The webhook then leaves out pods of namespace `default`.
    """
    yield from _cluster("bare", ClusterOptions(nodes=2, fairgate=False, exempt=("default",)))


@pytest.fixture(scope="session")
def fairgate_cluster(cluster_tools: binaries.Tools) -> Iterator[LocalCluster]:
    """A cluster of 8 nodes with 8 GPUs each, with Fairgate in it."""
    yield from _cluster("fairgate", ClusterOptions())


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Return the URL of the configured Redis, or start a server for this run."""
    if url := given_redis():
        yield url
        return
    folder = folders.own_folder("redis")
    folders.claim_folder(folder, FolderKind.CLUSTER)
    try:
        yield start_redis(folder, Processes(folder), durable=False)
    finally:
        LocalCluster(folder).down()


def _cluster(name: str, options: ClusterOptions) -> Iterator[LocalCluster]:
    cluster = LocalCluster(folders.own_folder(name))
    try:
        cluster.up(options)
        yield cluster
    finally:
        cluster.down()


def _needs_cluster(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] in REAL
