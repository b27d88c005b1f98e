"""The rig, cleared between tests; every test ends with the observer's verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.dev import folder as folders
from app.dev.cluster import Cluster
from app.dev.options import Options
from app.dev.tools import Tools
from tests.faults.rig import SMALL, Rig, open_rig

_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    if report.when == "call":
        item.stash[_passed] = report.passed
    return report


class Rigs:
    """The rig at hand: modules with the same options share it, until a test in it fails."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._at_hand: tuple[Options, Rig] | None = None

    def of(self, options: Options, folder: Path) -> Rig:
        """Return a rig with these options; one with others is taken down."""
        if self._at_hand is None or self._at_hand[0] != options:
            self.close()
            cluster = Cluster(folders.own_folder("rig"))
            rig = self._stack.enter_context(open_rig(cluster, folder, options))
            self._at_hand = options, rig
        return self._at_hand[1]

    def close(self) -> None:
        """Take it down: the next module gets another."""
        self._at_hand = None
        self._stack.close()


@pytest.fixture(scope="session")
def rigs() -> Iterator[Rigs]:
    """Rigs that outlast a module."""
    shared = Rigs()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def module_rig(
    rigs: Rigs,
    cluster_tools: Tools,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Rig]:
    """`OPTIONS` of a module are those of its cluster."""
    failed = request.session.testsfailed
    yield rigs.of(getattr(request.module, "OPTIONS", SMALL), tmp_path_factory.mktemp("rig"))
    if request.session.testsfailed > failed:
        rigs.close()


@pytest.fixture
def rig(
    module_rig: Rig,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """A small cluster, with a webhook, and nothing else of Fairgate."""
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
