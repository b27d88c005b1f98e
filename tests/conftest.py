"""The real things tests share: one bare cluster, one with Fairgate in it, one Redis.

A cluster's programs are looked for, or built, before the first test, so that no test's time runs
out over it. Where they cannot be had, tests that need them are skipped, and that is said at the
end; with REQUIRE_CLUSTER=1 they fail.
"""

from __future__ import annotations

import os
import signal
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from app.core.errors import FairgateError, ToolMissing
from app.dev import folder as folders
from app.dev import tools
from app.dev.cluster import Cluster
from app.dev.options import Options
from app.dev.processes import Processes
from app.dev.progress import Told
from app.dev.redis_server import given_redis, start_redis
from tests.sharing import BySetUp, place_of

REAL = ("integration", "contract", "e2e", "faults")
SKIPPED = "no cluster on this machine"

settings.register_profile("fairgate", deadline=None)  # no test asserts how long it takes
settings.load_profile("fairgate")

_reason: pytest.StashKey[str | None] = pytest.StashKey()


def pytest_configure() -> None:
    def interrupt(number: int, frame: types.FrameType | None) -> None:
        raise KeyboardInterrupt

    # Otherwise a SIGTERM ends us before fixtures take down what they started.
    signal.signal(signal.SIGTERM, interrupt)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    same = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if same:  # side by side, all but one of them would be left out without a word
        raise pytest.UsageError(f"several tests have one name: {', '.join(same)}")
    items.sort(key=lambda item: place_of(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> BySetUp:
    return BySetUp(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_reason] = None
    if session.config.option.collectonly or not any(map(_needs_cluster, session.items)):
        return
    try:
        if reason := tools.missing():
            raise ToolMissing(reason)
        tools.find(Told())
    except FairgateError as error:
        session.config.stash[_reason] = str(error)
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":  # one of those side by side
        for folder in folders.abandoned():
            Cluster(folder).down()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    count = sum(SKIPPED in str(report.longrepr) for report in skipped)
    if count:
        reason = terminalreporter.config.stash.get(_reason, None)
        terminalreporter.section("NOT TESTED ON A REAL CLUSTER", sep="!", red=True)
        terminalreporter.line(f"{count} tests were skipped: {SKIPPED}. {reason}")


@pytest.fixture(scope="session")
def cluster_tools(request: pytest.FixtureRequest) -> tools.Tools:
    """The programs of a cluster; skips, or fails if a cluster is required, where there are none."""
    reason = request.config.stash.get(_reason, None) or tools.missing()
    if reason is None:
        return tools.find()
    if os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0"):
        pytest.fail(f"A cluster is required: {reason}", pytrace=False)
    pytest.skip(f"{SKIPPED}: {reason}")


@pytest.fixture(scope="session")
def cluster(cluster_tools: tools.Tools) -> Iterator[Cluster]:
    """A control plane with two nodes of 8 GPUs, and Redis; no Fairgate.

    A test may `install()` the chart. Pods of namespace `default` stay free of the webhook then.
    """
    yield from _cluster("bare", Options(nodes=2, fairgate=False, exempt=("default",)))


@pytest.fixture(scope="session")
def fairgate_cluster(cluster_tools: tools.Tools) -> Iterator[Cluster]:
    """A cluster of 8 nodes with 8 GPUs each, with Fairgate in it."""
    yield from _cluster("fairgate", Options())


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis for this run: the one we were told of, or a server of its own."""
    if url := given_redis():
        yield url
        return
    folder = folders.own_folder("redis")
    folders.claim(folder)
    try:
        yield start_redis(folder, Processes(folder), durable=False)
    finally:
        Cluster(folder).down()


def _cluster(name: str, options: Options) -> Iterator[Cluster]:
    cluster = Cluster(folders.own_folder(name))
    try:
        cluster.up(options)
        yield cluster
    finally:
        cluster.down()


def _needs_cluster(item: pytest.Item) -> bool:
    return item.path.relative_to(Path(__file__).parent).parts[0] in REAL
