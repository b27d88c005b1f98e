"""The watchdog in races with other clients of an in-memory API server."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.kube.enforcement_spec import BINDING, PATHS, Object
from tests.support.enforcement_fixture import MUTATING, VALIDATING, Kept, until


class Server:
    """`kube.client.Client` for single objects. `before` runs before each request.

    It applies fields like the API server, but it has only one default. Lists of objects and watches
    get no answer.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.before: Callable[[str, str, bool], None] = lambda method, path, is_dry: None

    async def request(
        self, method: str, path: str, *, query: Any = (), body: Any = None, **more: Any
    ) -> bytes:
        options = dict(query)
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
            stored["metadata"] |= {"uid": path, "resourceVersion": number, "managedFields": owners}
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
    assert not [each for each in caplog.records if each.msg == "cannot be kept in force"]
    assert server.objects[removed] == before
