"""The watchdog in races with other clients of an in-memory API server."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.kube import enforcement_reports
from app.kube.enforcement_spec import BINDING, PATHS, Object
from app.kube.enforcement_timing import NORMAL, TRIES
from tests.support.enforcement_fixture import MUTATING, POLICY, QUICK, VALIDATING, Kept, until

FAILURE = "cannot be kept in force"


class Server:
    """`kube.client.Client` for single objects. `before` runs before each request.

    It applies fields like the API server, but it has only one default. Lists of objects and watches
    get no answer.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.before: Callable[[str, str, bool], None] = lambda method, path, is_dry: None
        self.seconds: dict[str, float] = {}
        """Time of a write, by path. The API server stores it though the client has given up."""
        self.stuck: set[str] = set()
        """Paths of writes that get no answer."""
        self.reads: list[str] = []
        self.writes: list[str] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Any = (),
        body: Any = None,
        timeout: float = 10.0,
        **more: Any,
    ) -> bytes:
        await asyncio.sleep(0)
        options = dict(query)
        if method == "GET":
            self.reads.append(path)
        else:
            self.writes.append(path)
            if path in self.stuck:
                await asyncio.Event().wait()
        answer = self._answer(method, path, options, body)
        if method != "GET" and self.seconds.get(path, 0.0) > timeout:
            raise ClusterUnavailable(f"{method} {path}: no answer (TimeoutError)")
        return answer

    def _answer(self, method: str, path: str, options: dict[str, str], body: Any) -> bytes:
        is_dry = "dryRun" in options
        self.before(method, path, is_dry)
        if path.endswith("s"):  # a list, or a new event
            raise ClusterUnavailable("no answer")
        live = self.objects.get(path)
        if live is None and method != "PATCH":
            raise ClusterRefused(f"{method} {path}: 404", 404)
        if method == "GET":
            return json.dumps(live).encode()
        version = (live or {"metadata": {}})["metadata"].get("resourceVersion")
        if body["metadata"].get("resourceVersion", version) != version:
            raise ClusterRefused(f"{method} {path}: 409", 409)
        stored = copy.deepcopy(body if live is None or method == "PUT" else merged(live, body))
        for each in stored.get("webhooks", ()):
            each.setdefault("failurePolicy", "Fail")
        if not is_dry:
            writer = {
                "manager": options["fieldManager"],
                "operation": "Apply" if method == "PATCH" else "Update",
            }
            owners = stored["metadata"].get("managedFields") or []
            owners += [] if writer in owners else [writer]
            number = str(int(version or 0) + 1)
            old = (live or {"metadata": {}})["metadata"].get("generation", 0)
            is_changed = live is None or any(
                live.get(at) != stored.get(at) for at in ("webhooks", "spec")
            )
            stored["metadata"] |= {"uid": path, "resourceVersion": number, "managedFields": owners}
            stored["metadata"]["generation"] = old + is_changed
            self.objects[path] = stored
        return json.dumps(stored).encode()

    def stream(self, *args: Any, **more: Any) -> Any:
        raise ClusterUnavailable("no answer")


def merged(live: Any, applied: Any) -> Any:
    """Return an object with applied fields: those of other clients stay."""
    match live, applied:
        case dict(), dict():
            return live | {key: merged(live.get(key), each) for key, each in applied.items()}
        case list(), list() if len(live) == len(applied):
            return [merged(*pair) for pair in zip(live, applied, strict=True)]
        case _:
            return applied


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def kept(server: Server) -> Kept:
    kept = Kept(server, b"a CA")  # type: ignore[arg-type]
    await kept.install()
    return kept


async def test_fields_of_a_client_that_created_the_object_first_are_removed_and_reported(
    server: Server, kept: Kept
) -> None:
    path = kept.path(MUTATING)

    def create_first(method: str, at: str, is_dry: bool) -> None:
        if (method, at) == ("PATCH", path) and at not in server.objects:
            made = copy.deepcopy(kept.documents[0])
            made["webhooks"][0]["objectSelector"] = {"matchLabels": {"no": "pod"}}
            owners = [{"manager": "kubectl-create", "operation": "Update"}]
            made["metadata"] |= {"uid": path, "resourceVersion": "1", "managedFields": owners}
            server.objects[path] = made

    server.before = create_first
    async with kept.keeping() as watchdog:

        async def is_restored() -> bool:
            live = server.objects.get(path) or {"webhooks": [{"objectSelector": {}}]}
            return watchdog.is_applied and "objectSelector" not in live["webhooks"][0]

        await until(is_restored)
        assert kept.guarded.restores == {MUTATING: 1}


async def test_objects_that_only_we_create_cost_no_dry_run_and_no_report(
    server: Server, kept: Kept
) -> None:
    dry_runs: list[str] = []

    def count(method: str, path: str, is_dry: bool) -> None:
        if is_dry and not all(kept.path(kind) in server.objects for kind in PATHS):
            dry_runs.append(path)

    server.before = count
    async with kept.keeping():
        await kept.settle()
    assert not dry_runs
    assert not kept.guarded.restores


async def test_an_upgrade_of_the_chart_during_a_round_is_no_failure(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """The round normalized documents that the upgrade then changes or removes."""
    async with kept.keeping():
        await kept.settle()
    for kind in (MUTATING, VALIDATING, BINDING):
        server.objects[kept.path(kind)]["metadata"]["labels"] = {}
    upgraded = copy.deepcopy(server.objects[kept.map_path])
    kept.documents[1]["metadata"]["labels"]["version"] = "2"
    upgraded["data"] = kept.data() | {"policies": kept.data()["policies"].partition("---")[0]}
    removed = kept.path(BINDING)
    before = copy.deepcopy(server.objects[removed])

    def upgrade(method: str, path: str, is_dry: bool) -> None:
        if (method, path) == ("GET", removed):  # all objects are read before the first is compared
            server.objects[kept.map_path] = upgraded

    server.before = upgrade
    with caplog.at_level(logging.ERROR, "fairgate.kube"):
        async with kept.keeping():

            async def is_upgraded() -> bool:
                labels = server.objects[kept.path(VALIDATING)]["metadata"]["labels"]
                return labels.get("version") == "2"

            await until(is_upgraded)
    assert not [each for each in caplog.records if each.msg == FAILURE]
    assert server.objects[removed] == before


@pytest.mark.parametrize("requests", range(18))
async def test_chart_upgrade_at_any_time_during_the_writes_takes_effect(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture, requests: int
) -> None:
    """It changes one object, deletes one, and deletes another one together with its document."""
    changed, deleted, removed = kept.path(VALIDATING), kept.path(POLICY), kept.path(BINDING)

    async with kept.keeping(pace=replace(QUICK, sweep=0.05)):
        await kept.settle()
        kept.documents[1]["metadata"]["labels"]["version"] = "2"
        kept.documents[2]["metadata"]["labels"]["version"] = "2"
        upgraded = copy.deepcopy(server.objects[kept.map_path])
        upgraded["data"] = kept.data() | {"policies": kept.data()["policies"].partition("---")[0]}
        left = requests

        def upgrade(method: str, path: str, is_dry: bool) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                server.objects[kept.map_path] = upgraded
                del server.objects[deleted], server.objects[removed]

        for kind in PATHS:  # all objects are then written at the same time
            server.objects[kept.path(kind)]["metadata"]["labels"] = {}
        server.before = upgrade

        async def is_upgraded() -> bool:
            found = [server.objects.get(each) for each in (changed, deleted)]
            return all(each and each["metadata"]["labels"].get("version") for each in found)

        await until(is_upgraded)
        reads = server.reads.count(kept.map_path)

        async def is_swept() -> bool:
            return server.reads.count(kept.map_path) > reads + 3

        await until(is_swept)
        assert removed not in server.objects
        assert server.objects[kept.path(MUTATING)]["metadata"]["labels"]
    assert FAILURE not in [each.msg for each in caplog.records]


async def test_a_config_map_of_a_later_chart_is_left_alone(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """Replicas of the former version run while Helm upgrades."""
    label = "helm.sh/chart"
    server.objects[kept.map_path]["metadata"].setdefault("labels", {})[label] = "fairgate-0.2.0"
    async with kept.keeping(pace=replace(QUICK, sweep=0.05)):
        await kept.settle()
        later = copy.deepcopy(server.objects[kept.map_path])
        later["metadata"]["labels"][label] = "fairgate-0.3.0"
        later["data"]["more"] = "{kind: MutatingAdmissionPolicy, metadata: {name: fairgate}}"
        server.objects[kept.map_path] = later
        del server.objects[kept.path(POLICY)]

        async def is_restored() -> bool:
            return kept.path(POLICY) in server.objects

        await until(is_restored)
        assert server.objects[kept.map_path] == later
    told = [each for each in caplog.records if "another version" in each.msg]
    assert len(told) == 1


async def test_config_map_deleted_during_a_round_is_reported_once(
    server: Server, kept: Kept
) -> None:
    """Each object that differs reads the ConfigMap before its write, all at the same time."""
    others = [kept.path(kind) for kind in PATHS if kind != MUTATING]
    async with kept.keeping():
        await kept.settle()
        is_gone = False

        def remove(method: str, path: str, is_dry: bool) -> None:
            nonlocal is_gone
            if path in others and not is_gone:
                is_gone = True
                del server.objects[kept.map_path]
                for each in others:
                    server.objects[each]["metadata"]["labels"] = {}

        server.before = remove

        async def is_restored() -> bool:
            found = [server.objects[each]["metadata"]["labels"] for each in others]
            return is_gone and all(found) and kept.map_path in server.objects

        await until(is_restored)
    assert kept.guarded.restores["ConfigMap"] == 1


# --- a slow API server ---


async def exists(server: Server, path: str) -> bool:
    return path in server.objects


async def await_write(server: Server, path: str) -> None:
    async def is_sent() -> bool:
        return path in server.writes

    await until(is_sent)


async def test_a_write_that_takes_the_server_20_seconds_is_awaited(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    server.seconds = {kept.path(kind): 20.0 for kind in PATHS}
    async with kept.keeping():
        await kept.settle()
    assert FAILURE not in [each.msg for each in caplog.records]


async def test_a_holding_webhook_is_tried_again_before_the_other_objects_are_written(
    server: Server, kept: Kept
) -> None:
    path, tries = kept.path(MUTATING), 0

    def refuse(method: str, at: str, is_dry: bool) -> None:
        nonlocal tries
        if (method, at) == ("PATCH", path):
            tries += 1
            if tries < 3:
                raise ClusterUnavailable("no answer (TimeoutError)")

    server.before = refuse
    server.stuck = {kept.path(kind) for kind in PATHS} - {path}
    async with kept.keeping():
        await until(lambda: exists(server, path), seconds=5.0)
        others = [await_write(server, each) for each in server.stuck]
        await asyncio.gather(*others)
    assert tries == 3
    wrote = [each for each in server.writes if each == path or each in server.stuck]
    assert wrote[:3] == [path] * 3


async def test_writes_that_fail_at_once_are_tried_again_after_growing_pauses(
    server: Server, kept: Kept
) -> None:
    tries: dict[str, list[float]] = {}

    def refuse(method: str, path: str, is_dry: bool) -> None:
        if method == "PATCH" and path in map(kept.path, PATHS):
            tries.setdefault(path, []).append(time.monotonic())
            raise ClusterUnavailable(f"PATCH {path}: 503 the server is overloaded")

    server.before = refuse
    async with kept.keeping():

        async def has_tried() -> bool:
            return len(tries) == len(PATHS) and all(len(each) >= TRIES for each in tries.values())

        await until(has_tried)
    for each in tries.values():
        pauses = [after - before for before, after in pairwise(each[:TRIES])]
        least = [QUICK.backoff[0] * 2**number for number in range(TRIES - 1)]
        assert all(pause >= wanted for pause, wanted in zip(pauses, least, strict=True)), pauses


def test_no_pause_before_a_write_is_repeated_is_longer_than_a_second() -> None:
    backoff = NORMAL.write_backoff()
    pauses = [backoff.next_delay(ClusterUnavailable("503")) for _ in range(TRIES - 1)]
    assert pauses == [0.5, 1.0, 1.0, 1.0]


async def test_an_object_that_gets_no_answer_does_not_delay_the_others(
    server: Server, kept: Kept
) -> None:
    server.stuck = {kept.path(MUTATING), kept.path(BINDING)}
    others = [kept.path(kind) for kind in PATHS if kept.path(kind) not in server.stuck]
    async with kept.keeping(pace=replace(QUICK, head_start=0.05)) as watchdog:
        for path in others:
            await until(partial(exists, server, path), seconds=5.0)
        assert not watchdog.has_checked_all


async def test_a_stored_write_without_an_answer_is_recognized(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept.path(VALIDATING)
    server.seconds = {path: 60.0}
    async with kept.keeping():
        await kept.settle()
        server.seconds = {}
    writes = [each for each in server.writes if each == path]
    assert len(writes) == 2  # created, then made to deny
    assert not kept.guarded.restores
    assert [each.msg for each in caplog.records].count(FAILURE) >= 1


async def test_a_replica_is_not_ready_before_pods_are_held(server: Server, kept: Kept) -> None:
    rounds = 0

    def refuse(method: str, path: str, is_dry: bool) -> None:
        nonlocal rounds
        rounds += (method, path) == ("GET", kept.map_path)
        if method == "PATCH" and path == kept.path(MUTATING) and rounds < 20:
            raise ClusterRefused("429", 429)

    server.before = refuse
    async with kept.keeping() as watchdog:

        async def has_looked() -> bool:
            assert not watchdog.has_checked_all or kept.path(MUTATING) in server.objects
            return watchdog.has_checked_all

        await until(has_looked)


async def test_a_failure_that_lasts_is_logged_with_its_current_reason(
    server: Server, kept: Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enforcement_reports, "LOG_SECONDS", 0.2)
    tries = 0

    def refuse(method: str, path: str, is_dry: bool) -> None:
        nonlocal tries
        if method == "PATCH" and path == kept.path(MUTATING):
            tries += 1
            raise ClusterRefused(f"reason {tries}", 403)

    async def unreached() -> str:
        return "no pod is held"

    server.before = refuse

    def told() -> list[str]:
        return [vars(each)["why"] for each in caplog.records if each.msg == FAILURE]

    with caplog.at_level(logging.WARNING, "fairgate.kube"):
        async with kept.keeping(unreachable_reason=unreached):

            async def is_told() -> bool:
                return len(told()) > 1

            await until(is_told)
    assert len(told()) < tries
    [warning] = [each for each in caplog.records if each.msg.startswith("nothing is refused")]
    assert vars(warning)["failing"] == {f"{MUTATING} {kept.name}": "reason 1"}


# --- reports ---


def weaken(server: Server, kept: Kept) -> None:
    """Set the mutating configuration to the form in which another replica creates it."""
    live = server.objects[kept.path(MUTATING)]
    for each in live["webhooks"]:
        each["failurePolicy"] = "Ignore"


async def test_an_object_that_another_replica_has_just_created_is_not_reported(
    server: Server, kept: Kept
) -> None:
    async with kept.keeping():
        await kept.settle()
    weaken(server, kept)
    server.objects[kept.path(MUTATING)]["metadata"]["generation"] = 1
    async with kept.keeping():
        await kept.settle()
    assert not kept.guarded.restores


@pytest.mark.parametrize("how", ["changed", "another manager", "another content", "seen before"])
async def test_a_weakened_object_is_reported_though_it_carries_our_name(
    server: Server, kept: Kept, how: str
) -> None:
    async with kept.keeping():
        await kept.settle()
        if how == "seen before":
            weaken(server, kept)
            server.objects[kept.path(MUTATING)]["metadata"]["generation"] = 1
            await kept.settle()
    if how != "seen before":
        weaken(server, kept)
        live = server.objects[kept.path(MUTATING)]
        live["metadata"]["generation"] = 2 if how == "changed" else 1
        if how == "another manager":
            live["metadata"]["managedFields"].append({"manager": "kubectl", "operation": "Update"})
        if how == "another content":
            live["webhooks"][0]["rules"] = []
        async with kept.keeping():
            await kept.settle()
    assert kept.guarded.restores == {MUTATING: 1}


async def test_a_stored_write_without_an_answer_is_not_reported_after_a_change_of_mode(
    server: Server, kept: Kept
) -> None:
    path = kept.path(MUTATING)
    for each in kept.documents[0]["webhooks"]:
        each["failurePolicy"] = "Fail"
    await kept.write()

    def observe(method: str, at: str, is_dry: bool) -> None:
        if (method, at) == ("PATCH", path) and path in server.objects:
            server.seconds[path] = 0.0 if kept.observes else 60.0
            kept.observes = True

    server.before = observe
    async with kept.keeping():

        async def is_weak() -> bool:
            live = server.objects.get(path) or {"metadata": {}}
            return bool(live["metadata"].get("generation") == 3)

        await until(is_weak)
    assert not kept.guarded.restores
