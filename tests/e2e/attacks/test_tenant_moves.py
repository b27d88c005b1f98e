"""Row 37: changes of Tenants by the admin of a parent tenant, to pass its limit."""

from __future__ import annotations

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import Ground, body, layer_of
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


def family(ground: Ground, stage: Stage) -> tuple[Yard, Person]:
    """Return a namespace of `son`, below `father`, below `house`, and an admin of all three.

    The limit of `house` is 1. The policy does not let the admin change it.
    """
    ours = yard(ground, stage)
    stage.tenant("house", "1", quotas=quotas(limit=1))
    stage.tenant("father", "1", parent="house")
    stage.tenant("son", "1", ours.namespace, parent="father")
    user = ground.name("head")
    name = ground.name("extra")
    what = ("--verb=get,patch,update,delete", "--resource=tenants.fairgate.io")
    names = [f"--resource-name={each}" for each in ("house", "father", "son")]
    ground.cluster.kubectl("create", "clusterrole", name, *what, *names)
    to = (f"--clusterrole={name}", f"--user={user}")
    ground.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]
    grant(ground, stage, user, "create", "tenants.fairgate.io")
    head = person(ground.cluster, user)
    until("RBAC lets it in", lambda: head.refused("GET", f"{TENANTS}/son", None) is None)
    said = head.refused("PATCH", f"{TENANTS}/house", {"spec": {"quotas": None}})
    assert said is not None
    return ours, head


def full(ours: Yard, outcomes: Outcomes, attack: str) -> bool:
    """Fill the limit and add a waiting pod. Return whether this mode has a webhook."""
    said = ours.make(body("first"))
    if ours.ground.mode == "killed":
        assert layer_of(said) == "outage"
        outcomes(37, ours.ground.mode, attack, "outage", said or "")
        return False
    assert said is None
    until("it is released", lambda: ours.released() == {"first"})
    assert ours.make(body("second")) is None
    return True


def passed_by(ground: Ground, stage: Stage) -> None:
    """Wait until a pod of another tenant, created now, is released."""
    other = yard(ground, stage)
    assert other.make(body("witness")) is None
    until("another tenant goes on", lambda: other.released() == {"witness"})


def test_37_pods_of_a_namespace_removed_from_its_tenant_stay_held(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(ground, stage)
    if not full(ours, outcomes, REMOVED):
        return
    son = f"{TENANTS}/son"
    assert head.refused("PATCH", son, {"spec": {"namespaces": []}}) is None
    passed_by(ground, stage)
    assert ours.held() == {"second"}
    listed = {"spec": {"namespaces": [ours.namespace]}}
    said = head.refused("PATCH", son, listed)
    assert said is not None
    assert validation.TENANT in said
    assert ground.admin.refused("PATCH", son, listed) is None
    passed_by(ground, stage)
    assert ours.held() == {"second"}
    outcomes(37, ground.mode, REMOVED, "D", "its pods wait 30 s for a tenant")


def test_37_admin_of_a_parent_takes_no_namespace_of_another_tenant(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    """A namespace that two tenants list belongs to the older tenant."""
    _, head = family(ground, stage)
    theirs = yard(ground, stage)
    stage.tenant("victim", "1", theirs.namespace)
    said = head.refused("PATCH", f"{TENANTS}/son", {"spec": {"namespaces": [theirs.namespace]}})
    assert said is not None
    assert validation.TENANT in said
    assert layer_of(said) == FIRST[ground.mode]
    outcomes(37, ground.mode, TAKEN, layer_of(said), said)


def test_37_no_pod_is_released_below_a_deleted_tenant(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(ground, stage)
    if not full(ours, outcomes, DELETED):
        return
    assert head.refused("DELETE", f"{TENANTS}/father", None) is None
    passed_by(ground, stage)
    assert ours.held() == {"second"}
    assert head.refused("POST", TENANTS, tenant("father", "1", parent="house")) is None
    passed_by(ground, stage)
    assert ours.held() == {"second"}
    outcomes(37, ground.mode, DELETED, "D", "nothing below it is released")


def test_37_no_pod_is_released_in_a_cycle_of_tenants(
    ground: Ground, stage: Stage, outcomes: Outcomes
) -> None:
    ours, head = family(ground, stage)
    if not full(ours, outcomes, CIRCLE):
        return
    heavy = {"spec": {"parent": "son", "weight": "1000"}}
    assert head.refused("PATCH", f"{TENANTS}/father", heavy) is None
    passed_by(ground, stage)
    assert ours.held() == {"second"}
    outcomes(37, ground.mode, CIRCLE, "D", "nothing in it is released")
