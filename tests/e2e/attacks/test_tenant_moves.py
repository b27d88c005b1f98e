"""Row 37: changes of Tenants by the admin of a parent tenant, to pass its limit."""

from __future__ import annotations

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import AttackEnvironment, body, layer_of
from tests.e2e.attacks.attack_namespaces import FIRST, Yard, grant, yard
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.attacks.test_weights import TENANTS
from tests.support.cluster_driver import Stage, tenant, until
from tests.support.personas import Person, person
from tests.support.shares import quotas

REMOVED = "remove a namespace from its tenant, and list it again"
TAKEN = "list a namespace of another tenant"
DELETED = "delete the tenant above"
CIRCLE = "close a circle of parents"


def family(env: AttackEnvironment, stage: Stage) -> tuple[Yard, Person]:
    """Return a namespace of `son`, below `father`, below `house`, and an admin of all three.

    The limit of `house` is 1. The policy does not let the admin change it.
    """
    ours = yard(env, stage)
    stage.tenant("house", "1", quotas=quotas(limit=1))
    stage.tenant("father", "1", parent="house")
    stage.tenant("son", "1", ours.namespace, parent="father")
    user = env.name("head")
    name = env.name("extra")
    what = ("--verb=get,patch,update,delete", "--resource=tenants.fairgate.io")
    names = [f"--resource-name={each}" for each in ("house", "father", "son")]
    env.cluster.kubectl("create", "clusterrole", name, *what, *names)
    to = (f"--clusterrole={name}", f"--user={user}")
    env.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]
    grant(env, stage, user, "create", "tenants.fairgate.io")
    head = person(env.cluster, user)
    until("RBAC lets it in", lambda: head.refused("GET", f"{TENANTS}/son", None) is None)
    said = head.refused("PATCH", f"{TENANTS}/house", {"spec": {"quotas": None}})
    assert said is not None
    return ours, head


def full(ours: Yard, outcomes: Outcomes, attack: str) -> bool:
    """Fill the limit and add a waiting pod. Return whether this mode has a webhook."""
    said = ours.make(body("first"))
    if ours.env.mode == "killed":
        assert layer_of(said) == "outage"
        outcomes(37, ours.env.mode, attack, "outage", said or "")
        return False
    assert said is None
    until("it is released", lambda: ours.released() == {"first"})
    assert ours.make(body("second")) is None
    return True


def passed_by(env: AttackEnvironment, stage: Stage) -> None:
    """Wait until a pod of another tenant, created now, is released."""
    other = yard(env, stage)
    assert other.make(body("witness")) is None
    until("another tenant goes on", lambda: other.released() == {"witness"})


def test_37_pods_of_a_namespace_removed_from_its_tenant_stay_held(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(env, stage)
    if not full(ours, outcomes, REMOVED):
        return
    son = f"{TENANTS}/son"
    assert head.refused("PATCH", son, {"spec": {"namespaces": []}}) is None
    passed_by(env, stage)
    assert ours.held() == {"second"}
    listed = {"spec": {"namespaces": [ours.namespace]}}
    said = head.refused("PATCH", son, listed)
    assert said is not None
    assert validation.TENANT in said
    assert env.admin.refused("PATCH", son, listed) is None
    passed_by(env, stage)
    assert ours.held() == {"second"}
    outcomes(37, env.mode, REMOVED, "D", "its pods wait 30 s for a tenant")


def test_37_admin_of_a_parent_takes_no_namespace_of_another_tenant(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    """A namespace that two tenants list belongs to the older tenant."""
    _, head = family(env, stage)
    theirs = yard(env, stage)
    stage.tenant("victim", "1", theirs.namespace)
    said = head.refused("PATCH", f"{TENANTS}/son", {"spec": {"namespaces": [theirs.namespace]}})
    assert said is not None
    assert validation.TENANT in said
    assert layer_of(said) == FIRST[env.mode]
    outcomes(37, env.mode, TAKEN, layer_of(said), said)


def test_37_no_pod_is_released_below_a_deleted_tenant(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(env, stage)
    if not full(ours, outcomes, DELETED):
        return
    assert head.refused("DELETE", f"{TENANTS}/father", None) is None
    passed_by(env, stage)
    assert ours.held() == {"second"}
    assert head.refused("POST", TENANTS, tenant("father", "1", parent="house")) is None
    passed_by(env, stage)
    assert ours.held() == {"second"}
    outcomes(37, env.mode, DELETED, "D", "nothing below it is released")


def test_37_no_pod_is_released_in_a_cycle_of_tenants(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(env, stage)
    if not full(ours, outcomes, CIRCLE):
        return
    heavy = {"spec": {"parent": "son", "weight": "1000"}}
    assert head.refused("PATCH", f"{TENANTS}/father", heavy) is None
    passed_by(env, stage)
    assert ours.held() == {"second"}
    outcomes(37, env.mode, CIRCLE, "D", "nothing in it is released")
