"""Authorization is the same at both REST endpoints and with kubectl; no other way in exists."""

from __future__ import annotations

import json
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.devcluster.cluster import LocalCluster
from app.tls.certificate_authority import CertificateAuthority, write_private
from tests.support.audit_entries import entries
from tests.support.cluster_driver import Object, Stage, pod, released_in_order, until
from tests.support.rest_doors import Callers, Endpoint, direct, own_token

TENANTS = "/apis/fairgate.io/v1alpha1/tenants"
TEAM: Object = {"parent": "d-research", "weight": "2", "users": [{"name": "alice", "weight": "3"}]}
WEIGH = {"weight": "9"}

Ask = tuple[str, str, object]
"""Method, path, body."""

CHANGES: dict[str, tuple[Ask, Ask, set[str]]] = {
    "weigh what is at top level": (
        ("PATCH", "/d-research", {"spec": WEIGH}),
        ("PUT", "/v1/tenants/d-research/weight", WEIGH),
        {"operator"},
    ),
    "weigh a team": (
        ("PATCH", "/d-team", {"spec": WEIGH}),
        ("PUT", "/v1/tenants/d-team/weight", WEIGH),
        {"operator", "governor"},
    ),
    "weigh what is below a team": (
        ("PATCH", "/d-child", {"spec": WEIGH}),
        ("PUT", "/v1/tenants/d-child/weight", WEIGH),
        {"operator", "owner"},
    ),
    "weigh a user": (
        ("PATCH", "/d-team", {"spec": {"users": [{"name": "alice", "weight": "7"}]}}),
        ("PUT", "/v1/tenants/d-team/users/alice/weight", {"weight": "7"}),
        {"operator", "admin"},
    ),
    "weigh a team and its user": (
        ("PATCH", "/d-team", {"spec": {**TEAM, "weight": "4", "users": []}}),
        ("PUT", "/v1/tenants/d-team", {**TEAM, "weight": "4", "users": []}),
        {"operator"},
    ),
    "move a team to the top": (
        ("PATCH", "/d-team", {"spec": {"parent": None}}),
        ("PUT", "/v1/tenants/d-team", {k: v for k, v in TEAM.items() if k != "parent"}),
        {"operator"},
    ),
    "make a tenant below a team": (
        ("POST", "", {"apiVersion": "fairgate.io/v1alpha1", "kind": "Tenant",
                      "metadata": {"name": "d-new"}, "spec": {"parent": "d-team"}}),
        ("PUT", "/v1/tenants/d-new", {"parent": "d-team"}),
        {"operator", "owner"},
    ),
    "delete a tenant below a team": (
        ("DELETE", "/d-child", None),
        ("DELETE", "/v1/tenants/d-child", None),
        {"operator", "owner"},
    ),
}  # fmt: skip
CALLERS = {
    "operator": ("update tenants", "update tenants/users"),
    "governor": ("update tenants d-research",),
    "admin": ("update tenants/users d-team",),
    "owner": ("update tenants d-team",),
    "nobody": (),
}
ANY = ("get tenants", "create tenants", "patch tenants", "delete tenants")
"""Verbs that kubectl checks for every user before the policy; they do not grant weights."""


@pytest.fixture(scope="module")
def callers(
    fairgate_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callers]:
    stage = Stage(fairgate_cluster, folder=tmp_path_factory.mktemp("doors"))
    try:
        stage.tenant("d-research")
        stage.tenant("d-team", **TEAM)
        stage.tenant("d-child", parent="d-team")
        found = Callers(stage, stage.namespace("doors"))
        for name, rules in CALLERS.items():
            found.add(name, *ANY, *rules)
        yield found
    finally:
        stage.clear()


@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("change", CHANGES)
def test_the_same_rule_holds_at_every_door(callers: Callers, who: str, change: str) -> None:
    (method, path, body), (rest_method, rest_path, rest_body), allowed = CHANGES[change]
    kubectl = callers.api_server(who).ask(
        method, f"{TENANTS}{path}?dryRun=All", body,
        **({"Content_Type": "application/merge-patch+json"} if method == "PATCH" else {}),
    )  # fmt: skip
    answers = {"kubectl": kubectl[0], "said": kubectl[1]}
    for name, door in (("direct", callers.direct(who)), ("aggregated", callers.aggregated(who))):
        answers[name] = door.ask(rest_method, f"{rest_path}?dryRun=true", rest_body)[0]
    wanted = (True,) * 3 if who in allowed else (False,) * 3
    found = tuple(answers[door] in (200, 201) for door in ("kubectl", "direct", "aggregated"))
    assert found == wanted, answers
    if who not in allowed:
        assert {answers[door] for door in ("kubectl", "direct", "aggregated")} == {403}, answers


def test_a_write_is_its_callers_deed_at_both_doors(callers: Callers, stage: Stage) -> None:
    stage.tenant("deed", parent="d-research")
    for weight, door in (("3", callers.direct("governor")), ("4", callers.aggregated("governor"))):
        status, shown, head = door.ask("PUT", "/v1/tenants/deed/weight", {"weight": weight})
        assert (status, shown["weight"]) == (200, weight)
        meta = stage.get("tenant", "deed")["metadata"]
        assert meta["annotations"]["fairgate.io/changed-by"] == callers.user("governor")
        assert meta["annotations"]["fairgate.io/changed"] == str(meta["generation"])
        assert head["etag"] == f'"{meta["uid"]}-{meta["generation"]}"'
    assert callers.direct("governor").ask("DELETE", "/v1/tenants/deed")[0] == 204

    def told(entry_type: str) -> list[Any]:
        return [
            each["facts"].get("by")
            for each in entries(stage.cluster)
            if each["deed"] == entry_type and each["facts"].get("name") == "deed"
        ]

    until("the deletion is told", lambda: told("deleted") == [callers.user("governor")])
    assert told("changed")[1:] == [callers.user("governor")] * 2 + ["unknown"]


def test_changed_by_annotation_always_names_the_caller(callers: Callers, stage: Stage) -> None:
    """A user that may change the tenant cannot do it: the webhook writes the name of the caller."""
    stage.tenant("named", parent="d-research")
    forged = {"metadata": {"annotations": {"fairgate.io/changed-by": "root"}}, "spec": WEIGH}
    kind = {"Content_Type": "application/merge-patch+json"}
    status, _, _ = callers.api_server("governor").ask("PATCH", f"{TENANTS}/named", forged, **kind)
    assert status == 200
    written = stage.get("tenant", "named")["metadata"]["annotations"]
    assert written["fairgate.io/changed-by"] == callers.user("governor")


def test_weight_set_over_rest_changes_the_release_order(callers: Callers, stage: Stage) -> None:
    wall, light, heavy = map(stage.namespace, ("wall", "d-light", "d-heavy"))
    stage.tenant("d-light", "1", light, parent="d-research")
    stage.tenant("d-heavy", "1", heavy, parent="d-research")
    blockers = stage.block(wall)
    for namespace in (light, heavy):
        stage.apply(namespace, *(pod(f"{namespace}-{number}", 8) for number in range(6)))
    until("all wait", lambda: len(stage.held(light)) == len(stage.held(heavy)) == 6)
    status, shown, _ = callers.aggregated("governor").ask(
        "PUT", "/v1/tenants/d-heavy/weight?dryRun=true", {"weight": "3"}
    )
    assert status == 200
    changed = {each["tenant"]: (each["before"], each["after"]) for each in shown["shares"]}
    assert changed.keys() >= {"d-heavy", "d-light"}
    assert float(changed["d-heavy"][1]) > float(changed["d-heavy"][0])
    begun = time.monotonic()
    door = callers.aggregated("governor")
    assert door.ask("PUT", "/v1/tenants/d-heavy/weight", {"weight": "3"})[0] == 200
    written = time.monotonic()
    until("the leader knows", lambda: _told_weight(stage, "d-heavy") == "3")
    known = time.monotonic()
    print(f"written after {written - begun:.3f} s, the leader had it {known - written:.3f} s later")
    for number, blocker in enumerate(blockers[:4], start=1):
        stage.delete(wall, blocker)
        released = lambda n=number: len(stage.using(light)) + len(stage.using(heavy)) == n  # noqa: E731
        until("one more is released", released)
    order = released_in_order(stage.pods(light) + stage.pods(heavy))
    assert sorted(name.rpartition("-")[0] for name in order) == ["d-heavy"] * 3 + ["d-light"]


def _told_weight(stage: Stage, name: str) -> str:
    """Return the weight in the leader's status."""
    found = stage.get("tenant", name)
    seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return str(found["spec"]["weight"]) if seen else ""


def test_editions_are_heeded_by_a_real_api_server(callers: Callers, stage: Stage) -> None:
    door = callers.direct("governor")
    status, _, first = door.ask("PUT", "/v1/tenants/edited", {"parent": "d-research"})
    stage.objects.append(("tenant", "edited"))
    assert status == 201
    path = "/v1/tenants/edited/weight"
    assert door.ask("PUT", path, {"weight": "2"}, If_Match=first["etag"])[0] == 200
    status, problem, head = door.ask("PUT", path, {"weight": "3"}, If_Match=first["etag"])
    assert (status, head["content-type"]) == (412, "application/problem+json")
    assert "read it again" in problem["detail"]
    assert stage.get("tenant", "edited")["spec"]["weight"] == "2"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/v1/tenants/d-team/weight", {"weight": "007"}, "spec.weight: "),
        ("/v1/tenants/ns.some", {}, "names that begin with ns."),
        ("/v1/tenants/d-team", {**TEAM, "parent": "d-team"}, "cannot be its own parent"),
        ("/v1/tenants/d-team", {**TEAM, "namespaces": ["No Name"]}, "spec.namespaces[0]"),
    ],
)
def test_refusals_of_the_api_server_are_returned_over_rest(
    callers: Callers, path: str, body: Object, told: str
) -> None:
    for door in (callers.direct("operator"), callers.aggregated("operator")):
        status, problem, head = door.ask("PUT", path, body)
        assert (status, head["content-type"]) == (422, "application/problem+json")
        assert told in problem["detail"]
        print(problem["detail"])


# --- unknown callers ---


def test_invalid_or_foreign_tokens_are_answered_with_401(callers: Callers, stage: Stage) -> None:
    account = stage.get("serviceaccount", "operator", "-n", callers.namespace)
    uid = account["metadata"]["uid"]
    path = "/v1/tenants"
    control = own_token(stage, "operator", callers.namespace, uid, 600)
    assert direct(stage, control).ask("PUT", f"{path}/d-team/weight?dryRun=true", WEIGH)[0] == 200
    bad = {
        "expired": own_token(stage, "operator", callers.namespace, uid, -60),
        "of one that is gone": own_token(stage, "operator", callers.namespace, "other", 600),
        "for the API server": callers.token("operator"),
        "for others": callers.token("operator", "vault"),
        "broken": control[:-4],
        "none": "",
        "nonsense": "x",
    }
    for name, token in bad.items():
        status, problem, head = direct(stage, token).ask("GET", path)
        assert status == 401, name
        assert head["www-authenticate"] == "Bearer"
        assert problem["status"] == 401


FORGED = {"X_Remote_User": "system:admin", "X_Remote_Group": "system:masters"}


def test_forged_identity_headers_are_ignored(callers: Callers, stage: Stage) -> None:
    path = "/v1/tenants/d-team/weight"
    assert direct(stage).ask("PUT", path, WEIGH, **FORGED)[0] == 401
    for door in (callers.direct("nobody"), callers.aggregated("nobody")):
        status, problem, _ = door.ask("PUT", path, WEIGH, **FORGED)
        assert status == 403
        assert callers.user("nobody") in problem["detail"]
    assert stage.get("tenant", "d-team")["spec"]["weight"] == "2"


def test_only_the_front_proxy_is_let_in_at_its_door(stage: Stage, tmp_path: Path) -> None:
    def door(authority: str, name: str) -> Endpoint:
        pki = stage.cluster.folder / "pki"
        parts = [(pki / f"{authority}-ca.{end}").read_bytes() for end in ("crt", "key")]
        own = CertificateAuthority.load(*parts).issue(
            name, names=[], server=False, client=True, now=datetime.now(UTC), days=1
        )
        write_private(tmp_path / "own.crt", own.certificate_pem)
        write_private(tmp_path / "own.key", own.key_pem)
        installation = stage.cluster.fairgate().installation()
        assert installation is not None
        context = ssl.create_default_context(cafile=stage.cluster.details().ca)
        context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
        return Endpoint(
            f"https://localhost:{installation.aggregated_port}/apis/api.fairgate.io", context
        )

    path = "/v1/tenants/d-team/weight?dryRun=true"
    proxy = door("front-proxy", "front-proxy-client")
    assert proxy.ask("PUT", path, WEIGH, **FORGED)[0] in (
        200,
        404,
    )  # control: admitted
    assert proxy.ask("PUT", path, WEIGH)[0] == 401  # no audience
    assert door("front-proxy", "somebody").ask("PUT", path, WEIGH, **FORGED)[0] == 401
    for authority in ("cluster", "webhook-client"):
        with pytest.raises(OSError):  # noqa: PT011
            door(authority, "front-proxy-client").ask("PUT", path, WEIGH, **FORGED)
    bare = Endpoint(proxy.base, ssl.create_default_context(cafile=stage.cluster.details().ca))
    with pytest.raises(OSError):  # noqa: PT011
        bare.ask("PUT", path, WEIGH, **FORGED)


# --- the other programs of the API server ---


def test_discovery_is_whole_and_kubectl_means_the_resources(stage: Stage) -> None:
    details = stage.cluster.details()
    done = subprocess.run(
        [details.kubectl, "--kubeconfig", details.kubeconfig, "api-resources"],
        capture_output=True, text=True, check=False, env={"HOME": str(stage.folder)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "tenants" in done.stdout
    assert "api.fairgate.io" not in done.stdout
    listed = json.loads(stage.cluster.kubectl("get", "tenants", "-o", "json"))
    assert listed["apiVersion"] == "v1", "a list of kubectl, of one kind"
    group = json.loads(stage.cluster.kubectl("get", "--raw", "/apis/api.fairgate.io"))
    assert group["preferredVersion"]["groupVersion"] == "api.fairgate.io/v1"


def test_namespaces_are_deleted_while_the_api_is_behind_the_api_server(stage: Stage) -> None:
    stage.cluster.kubectl("create", "namespace", "d-going")
    stage.cluster.kubectl("delete", "namespace", "d-going", "--timeout=60s")
    found = stage.get("namespaces")["items"]
    assert "d-going" not in [each["metadata"]["name"] for each in found]


def test_the_ca_is_put_back(stage: Stage) -> None:
    path = ("apiservice", "v1.api.fairgate.io")
    before = stage.get(*path)["spec"]["caBundle"]
    kind = ("--type=merge", "-p", '{"spec": {"caBundle": null}}')
    stage.cluster.kubectl("patch", *path, *kind)
    until("it is there again", lambda: stage.get(*path)["spec"].get("caBundle") == before)
