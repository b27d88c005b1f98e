"""The running service implements its OpenAPI document and does not leak data between tenants.

No answer to the admin of one tenant, including the stream, contains data of another tenant.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from app.devcluster.cluster import LocalCluster
from tests.fakes.fake_api_cluster import ApiCluster
from tests.support.canary_names import Bodies, Values, leak, operations, requests_of, written
from tests.support.cluster_driver import GPU, Stage, pod, until
from tests.support.rest_doors import Callers, Endpoint

CANARY = "zebrafinch"
OURS, OTHERS, SPACE = "n-ours", "n-others", f"n-{CANARY}"
THEIR_USER = f"{CANARY}-carol"
ADMIN = (
    f"get tenants {OURS}", f"update tenants {OURS}", f"update tenants/users {OURS}",
    f"get tenants/queue {OURS}", f"get tenants/usage {OURS}", f"get audit {OURS}",
    "create simulations", "get stream",
)  # fmt: skip
EVERYTHING = ("tenants", "tenants/users", "tenants/queue", "tenants/usage", "pools", "quotas",
              "audit", "simulations", "stream")  # fmt: skip
READER = ("list tenants", "list pools", *(f"get {each}" for each in EVERYTHING))
OPERATOR = tuple(f"* {each}" for each in EVERYTHING)
VALUES: Values = {
    "tenant": (OURS, OTHERS, "nowhere"),
    "user": ("n-alice", THEIR_USER),
    "by": ("tenant,user,pool,node,workload",),
    "format": ("json", "csv"),
    "step": ("10m",),
    "limit": ("1", "500"),
    "dryRun": ("true",),
    "pool": ("default", "nowhere"),
    "node": ("gpu-node-0", "gpu-node-1", "nowhere"),
    "namespace": (OURS, SPACE),
    "pod": ("n-0", "n-1", f"{CANARY}-0", f"{CANARY}-1"),
}
BODIES: Bodies = {
    "POST /v1/simulations": ({"hours": 1}, {"weights": {OTHERS: "9"}, "hours": 1}),
    "POST /v1/trials": ({"namespace": OURS, "pods": [{"pod": {}}]},),
    "PUT /v1/tenants/{tenant}": ({}, {"parent": OTHERS}),
    "PUT /v1/tenants/{tenant}/weight": ({"weight": "2"},),
    "PUT /v1/tenants/{tenant}/users/{user}/weight": ({"weight": "2"},),
    "PUT /v1/pools/{pool}": ({},),
}
STREAM = "GET /v1/stream"
DOCUMENT = ApiCluster().app().openapi()

schema = schemathesis.openapi.from_dict(DOCUMENT)
schema.config.phases.coverage.enabled = False


@pytest.fixture(scope="module")
def callers(
    fairgate_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callers]:
    """Two tenants on a full cluster, with running and waiting pods, and their callers."""
    stage = Stage(fairgate_cluster, folder=tmp_path_factory.mktemp("neighbours"))
    try:
        quota = [{"pool": "default", "guarantee": {GPU: 8}, "limit": {GPU: 40}}]
        for name, space, user in ((OURS, OURS, "n-alice"), (OTHERS, SPACE, THEIR_USER)):
            stage.namespace(space)
            users = [{"name": user, "weight": "2"}]
            stage.tenant(name, "1", space, users=users, quotas=quota)
            mark = "n" if name == OURS else CANARY
            pods = "\n---\n".join(json.dumps(pod(f"{mark}-{number}", 8)) for number in range(6))
            stage.as_user(user, space).run("apply", "-n", space, "-f", "-", stdin=pods)
        until("all nodes are taken", lambda: sum(
            len(stage.running(space)) for space in (OURS, SPACE)) == 8)  # fmt: skip
        found = Callers(stage, stage.namespace("n-people"))
        for name, rules in (("nobody", ()), ("admin", ADMIN), ("viewer", READER),
                            ("operator", OPERATOR)):  # fmt: skip
            found.add(name, *rules)
        account = f"--serviceaccount={found.namespace}:admin"
        look = ("rolebinding", "n-look", "-n", OURS, "--clusterrole=view", account)
        fairgate_cluster.kubectl("create", *look)
        door = found.direct("admin")
        until("RBAC lets it in", lambda: door.ask("GET", f"/v1/tenants/{OURS}/queue")[0] == 200)
        until("why is told", lambda: door.ask("GET", f"/v1/workloads/{OURS}/n-5")[0] == 200)
        yield found
    finally:
        stage.clear()


def all_of(door: Endpoint, operation: str, path: str, body: object) -> str:
    method = operation.partition(" ")[0]
    if method in ("PUT", "DELETE") and "dryRun" not in path:
        path += ("&" if "?" in path else "?") + "dryRun=true"
    status, told, head = door.ask(method, path, body)
    assert status < 500, (operation, path, told)
    return json.dumps([told, head])


@pytest.mark.parametrize("operation", [each for each in operations(DOCUMENT) if each != STREAM])
def test_answers_contain_no_data_of_other_tenants(callers: Callers, operation: str) -> None:
    for door in (callers.direct("admin"), callers.aggregated("admin")):
        if "/v1/" not in operation and door.base == callers.aggregated("admin").base:
            continue  # only the API itself is behind the API server
        for path, body in requests_of(operation, operations(DOCUMENT)[operation], VALUES, BODIES):
            found = leak(all_of(door, operation, path, body), CANARY, written(path, body))
            assert not found, f"{operation} {path}: {found}"


def test_stream_contains_no_data_of_other_tenants(callers: Callers) -> None:
    door = callers.direct("admin")
    head = {"Authorization": f"Bearer {door.token}"}
    request = urllib.request.Request(f"{door.base}/v1/stream", headers=head)
    text = ""
    with urllib.request.urlopen(request, timeout=60, context=door.context) as answer:
        while "event: state" not in text or not text.endswith("\n\n"):
            text += answer.readline().decode()
    assert OURS in text
    assert not leak(text, CANARY)


def test_the_canary_would_be_seen(callers: Callers) -> None:
    door = callers.direct("operator")
    for path in (
        f"/v1/tenants/{OTHERS}/queue",
        "/v1/tenants",
        f"/v1/usage?by=workload&tenant={OTHERS}",
    ):
        until(f"{path} tells", lambda path=path: CANARY in json.dumps(door.ask("GET", path)[1]))


@pytest.mark.parametrize("who", ["nobody", "admin", "viewer", "operator"])
@schema.include(path_regex="^/v1/").exclude(path_regex="stream$").parametrize()
@settings(max_examples=2, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_documented(case: Case, who: str, callers: Callers) -> None:
    door = callers.direct(who)
    if case.method in ("PUT", "DELETE"):
        case.query = {**(case.query or {}), "dryRun": "true"}  # other tests use this cluster
    with requests.Session() as session:
        case.call_and_validate(
            base_url=door.base,
            session=session,
            verify=callers.stage.cluster.details().ca,
            headers={"Authorization": f"Bearer {door.token}"},
            excluded_checks=[positive_data_acceptance, negative_data_rejection],
        )
