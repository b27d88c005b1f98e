"""Rows 23 and 24: more than a fair share by weight, in every place that stores weights."""

from __future__ import annotations

import json

import redis

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import BLUE, AttackEnvironment, body, layer_of
from tests.e2e.attacks.attack_namespaces import FIRST, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.attacks.rest_requests import asked, token_of
from tests.support.cluster_driver import Object, Stage, tenant, until
from tests.support.personas import person
from tests.support.shares import quotas, status

TENANTS = "/apis/fairgate.io/v1alpha1/tenants"


def test_23_tenant_user_cannot_change_weights(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours = yard(env, stage)
    stage.tenant("ours", "1", ours.namespace)
    heavier = {"spec": {"weight": "9"}}
    said = env.mallory.refused("PATCH", f"{TENANTS}/ours", heavier)
    assert said is not None
    assert 'cannot patch resource "tenants"' in said
    outcomes(23, env.mode, "weights by kubectl", layer_of(said), said)
    new = tenant("mine", "99", ours.namespace)
    said = env.mallory.refused("POST", TENANTS, new)
    assert said is not None
    assert 'cannot create resource "tenants"' in said
    token = token_of(env.mallory, ours.namespace)
    code, answer = asked(env, "PUT", "/v1/tenants/ours/weight", token, {"weight": "9"})
    assert code == 403, answer
    outcomes(23, env.mode, "weights over REST", "R", json.loads(answer)["detail"])
    behind = "/apis/api.fairgate.io/v1/tenants/ours"
    for method, at, sent in [
        ("PUT", f"{behind}/weight", {"weight": "9"}),
        ("DELETE", behind, None),
    ]:
        said = env.mallory.refused(method, at, sent)
        assert said is not None
        assert "mallory may not update tenants.fairgate.io" in said
    outcomes(23, env.mode, "weights through the API server", "R", "the same sentence")
    assert stage.get("tenant", "ours")["spec"]["weight"] == "1"


def test_23_usage_deleted_from_redis_does_not_affect_the_limit(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "usage and queues written in Redis"
    ours = yard(env, stage)
    stage.tenant("limited", "1", ours.namespace, quotas=quotas(limit=1))
    until("the leader knows it", lambda: status(stage, "limited").get("pending") == 0)
    said = ours.make(body("first"))
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(23, env.mode, attack, "outage", said or "")
        return
    assert said is None
    until("it is released", lambda: ours.released() == {"first"})
    assert ours.make(body("second")) is None
    until("another waits", lambda: status(stage, "limited").get("pending") == 1)
    with redis.Redis.from_url(env.cluster.details().redis) as server:
        generation = server.hget("fairgate:{default}:state", "generation")
        assert isinstance(generation, bytes)
        used = f"fairgate:{{default}}:{generation.decode()}:used"
        mine = [key for key in server.hkeys(used) if key.startswith(b"limited:")]
        assert len(mine) > 0
        server.hdel(used, *mine)
        server.delete(f"fairgate:{{default}}:{generation.decode()}:charges")
        # The leader writes and decides again.
        other = yard(env, stage)
        assert other.make(body("witness")) is None
        until("another tenant goes on", lambda: other.released() == {"witness"})
        assert ours.held() == {"second"}
        assert ours.used("limited") == 1
        server.flushall()  # also removes the leader's later writes
    until("the copy is anew", lambda: _is_counted(env, "limited:mallory:default:"))
    outcomes(23, env.mode, attack, "D", "the limit holds: usage in Redis is only a copy")


def _is_counted(env: AttackEnvironment, begins: str) -> bool:
    with redis.Redis.from_url(env.cluster.details().redis) as server:
        generation = server.hget("fairgate:{default}:state", "generation")
        if not isinstance(generation, bytes):
            return False
        used = server.hkeys(f"fairgate:{{default}}:{generation.decode()}:used")
        return any(key.startswith(begins.encode()) for key in used)


def test_24_a_tenant_admin_does_not_raise_the_own_tenant(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, user = yard(env, stage), env.name("head")
    stage.tenant("above", "1")
    stage.tenant("below", "1", ours.namespace, parent="above")
    name = env.name("admin")
    rules: list[Object] = [
        {
            "apiGroups": ["fairgate.io"],
            "resources": ["tenants", "tenants/users"],
            "resourceNames": ["below"],
            "verbs": ["get", "update", "patch", "delete"],
        },
        {"apiGroups": ["fairgate.io"], "resources": ["tenants"], "verbs": ["create"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    stage.apply("default", {**role, "metadata": {"name": name}, "rules": rules})
    to = (f"--clusterrole={name}", f"--user={user}")
    env.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]
    head, at = person(env.cluster, user), f"{TENANTS}/below"
    until("RBAC lets it in", lambda: head.refused("GET", at, None) is None)
    before = head.get(at)["spec"]
    raises: tuple[Object, ...] = (
        {"weight": "9"},
        {"quotas": quotas(guarantee=32)},
        {"maxPending": 1_000_000},
        {"namespaces": [ours.namespace, BLUE]},
        {"parent": None},
        {"parent": None, "users": [{"name": "mallory", "weight": "2"}]},
    )
    for change in raises:
        said = head.refused("PATCH", at, {"spec": change})
        assert said is not None, change
        assert validation.TENANT in said
        assert layer_of(said) == FIRST[env.mode]
    outcomes(24, env.mode, "raise the own tenant", layer_of(said), said or "")
    gone = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "gone"}
    for refused in (
        head.refused("DELETE", at, None),
        head.refused("PATCH", at, {"metadata": {"ownerReferences": [gone]}}),
        head.refused("PATCH", at, {"metadata": {"finalizers": ["example.com/mine"]}}),
        head.refused("POST", TENANTS, tenant("second", "9", ours.namespace)),
        head.refused("POST", TENANTS, tenant("second", "9", ours.namespace, parent="above")),
    ):
        assert refused is not None
        assert validation.TENANT in refused
    assert head.get(at)["spec"] == before
    said = head.refused("POST", TENANTS, tenant("default", "1", parent="below"))
    assert said is not None
    assert "has no parent" in said
    outcomes(24, env.mode, "put all unmapped namespaces below the own tenant", "K", said)
    said = head.refused("PATCH", f"{at}/status", {"status": {"pending": 0}})
    assert said is not None
    assert layer_of(said) == "R"
    outcomes(24, env.mode, "write the status of the own tenant", "R", said)
    # The admin of a tenant may still set the weights of its users.
    weighed = {"spec": {"users": [{"name": "mallory", "weight": "2"}]}}
    assert head.refused("PATCH", at, weighed) is None
