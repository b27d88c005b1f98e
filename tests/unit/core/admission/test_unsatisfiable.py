"""A pod that no pool can ever run is refused at create; one that might run is not."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.admission.hold import DenyDecision
from app.core.admission.unsatisfiable import (
    KnownPools,
    PodRequirements,
    refuse_invalid_annotations,
    refuse_unsatisfiable,
)
from app.core.model import (
    Amounts,
    Millis,
    Pool,
    PoolName,
    Quota,
    Resource,
    Tenant,
    TenantName,
)
from app.core.policy import Mode, Policy
from app.core.quantities import GIB, ManagedResources
from app.web.webhook.cache import WebhookCache
from tests.support.json_patch import apply
from tests.support.webhook_app import answer, app_of, gpu_pod, review

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU, "nvidia.com/mig-*"])
NOW = Millis(0)
MEMORY, SIZE, POOLS = "fairgate.io/gpu-memory", "fairgate.io/model-size", "fairgate.io/pools"


def kind(name: str, gib: int | None = None, most: int = 0, **selector: str) -> Pool:
    return Pool(
        PoolName(name),
        selector,
        gpu_memory=None if gib is None else gib * GIB,
        max_capacity={GPU: most} if most else {},
    )


def team(
    name: str = "team", limits: dict[str, int] | None = None, pools: tuple[str, ...] = ()
) -> Tenant:
    quotas = {PoolName(p): Quota(limit={GPU: v}) for p, v in (limits or {}).items()}
    named = tuple(PoolName(each) for each in pools)
    return Tenant(TenantName(name), NOW, pools=named, quotas=quotas)


def known(*pools: Pool, tenants: tuple[Tenant, ...] = (), **offered: int) -> KnownPools:
    told: dict[PoolName, Amounts] = {PoolName(p): {GPU: v} for p, v in offered.items()}
    return KnownPools({pool.name: pool for pool in pools}, tenants, told)


def why_not(known: KnownPools, devices: int = 1, **required: Any) -> str:
    """Return the message of the refusal, "" if accepted."""
    found = refuse_unsatisfiable(PodRequirements({GPU: devices}, **required), known, MANAGED)
    if found is None:
        return ""
    assert found.code == 403
    return found.message


def test_without_a_word_every_pod_has_a_prospect() -> None:
    assert why_not(known()) == ""
    assert why_not(known(kind("a", 16)), 1000) == ""


def test_memory_that_no_pool_holds() -> None:
    both = known(kind("h100", 80), kind("t4", 16))
    text = why_not(both, annotations={SIZE: "70B"})
    assert text == (
        "Fairgate: no pool can ever serve this pod (fairgate.io/model-size: 70B): "
        "pool h100: it needs 140Gi of device memory, and asks for 1 device of 80Gi; "
        "pool t4: it needs 140Gi of device memory, and asks for 1 device of 16Gi. "
        "To make it run, ask for more devices or state less memory."
    )
    assert why_not(both, 2, annotations={SIZE: "70B"}) == ""


def test_pool_without_declared_device_memory_may_serve_any_pod() -> None:
    assert why_not(known(kind("t4", 16), kind("other")), annotations={MEMORY: "500Gi"}) == ""


def test_memory_of_a_mig_slice_is_read_from_its_name() -> None:
    required = PodRequirements({Resource("nvidia.com/mig-1g.10gb"): 1}, {MEMORY: "11Gi"})
    found = refuse_unsatisfiable(required, known(kind("a100")), MANAGED)
    assert found is not None
    assert "needs 11Gi of device memory, and asks for 10Gi" in found.message
    smaller = PodRequirements(required.demand, {MEMORY: "10Gi"})
    assert refuse_unsatisfiable(smaller, known(kind("a100")), MANAGED) is None


@pytest.mark.parametrize(
    ("pools", "there"),
    [
        ((), "without any Pool all nodes are the one pool default"),
        ((kind("a"), kind("b")), "there are a, b"),
        (tuple(kind(f"p{n}") for n in range(9)), "there are p0, p1, p2, p3 and 5 more"),
    ],
)
def test_annotation_with_only_unknown_pools_is_refused(pools: tuple[Pool, ...], there: str) -> None:
    text = why_not(known(*pools), annotations={POOLS: "h200, h300"})
    assert "fairgate.io/pools names h200, h300, and there is no such pool; " + there in text


def test_annotation_with_one_existing_pool_is_accepted() -> None:
    assert why_not(known(), annotations={POOLS: "default"}) == ""
    assert why_not(known(kind("a")), annotations={POOLS: "typo,a"}) == ""


def test_a_tenants_pools_and_the_annotation_that_names_others() -> None:
    pools = known(kind("a"), kind("b"), tenants=(team(pools=("a",)),))
    assert why_not(pools) == ""
    text = why_not(pools, annotations={POOLS: "b"})
    assert "pool b: its tenant team may not use it" in text


def test_pool_list_of_another_tenant_does_not_restrict_a_pod() -> None:
    """As in the leader, only the tenant's own list counts."""
    above = team("above", pools=("a",))
    assert why_not(known(kind("b"), tenants=(team(), above))) == ""


def test_a_node_selector_against_that_of_every_pool() -> None:
    pools = known(kind("a", product="A100"), kind("t", product="T4"))
    text = why_not(pools, selector={"product": "H100"})
    assert "its node selector asks for product=H100, the pool is product=A100" in text
    assert why_not(pools, selector={"product": "T4"}) == ""
    assert why_not(pools, selector={"zone": "b"}) == ""


def test_a_limit_below_the_request_in_every_pool() -> None:
    limits = team(limits={"a": 2, "b": 1})
    pools = (kind("a"), kind("b"))
    assert why_not(known(*pools, tenants=(limits,)), 2) == ""
    text = why_not(known(*pools, tenants=(limits,)), 3)
    assert "pool a: 3 nvidia.com/gpu asked, and the limit of tenant team is 2" in text
    assert why_not(known(*pools, kind("c"), tenants=(limits,)), 3) == ""


def test_the_limit_of_a_tenant_above_counts() -> None:
    lineage = (team(limits={"a": 8}), team("above", limits={"a": 4}))
    text = why_not(known(kind("a"), tenants=lineage), 5)
    assert "the limit of tenant above is 4" in text


def test_limit_on_a_resource_without_shares_refuses_no_pod() -> None:
    cpu = Resource("cpu")
    tenant = Tenant(TenantName("t"), NOW, quotas={PoolName("a"): Quota(limit={cpu: 1})})
    required = PodRequirements({GPU: 1, cpu: 8000})
    assert refuse_unsatisfiable(required, known(kind("a"), tenants=(tenant,)), MANAGED) is None


def test_maximum_capacity_of_a_pool_counts_once_its_size_is_known() -> None:
    small = kind("a", most=8)
    assert why_not(known(small), 9) == ""
    assert "and the whole pool has 8 at most" in why_not(known(small, a=0), 9)
    assert why_not(known(small, a=16), 9) == ""
    assert why_not(known(small, a=16), 17)
    assert why_not(known(kind("a"), a=4), 9) == ""  # anyone may add nodes


def test_pod_with_claims_is_never_refused_as_unsatisfiable() -> None:
    annotations = {SIZE: "70B", POOLS: "nowhere"}
    assert why_not(known(kind("a", 16)), claims=True, annotations=annotations) == ""
    required = PodRequirements({Resource("deviceclass.resource.kubernetes.io/gpu"): 1}, annotations)
    assert refuse_unsatisfiable(required, known(kind("a", 16)), MANAGED) is None


def test_many_pools_are_counted_not_listed() -> None:
    text = why_not(known(*(kind(f"p{n}", 16) for n in range(9))), annotations={SIZE: "70B"})
    assert "; and 5 more. To make it run" in text
    assert len(text) < 600


def test_invalid_annotation_is_refused_regardless_of_the_pools() -> None:
    found = refuse_invalid_annotations(PodRequirements({GPU: 1}, {MEMORY: "40GB"}))
    assert isinstance(found, DenyDecision)
    assert found.code == 422
    assert refuse_invalid_annotations(PodRequirements({GPU: 1}, {MEMORY: "40Gi"})) is None


async def view_of(*events: ev.ClusterEvent, fresh: bool = True) -> WebhookCache:
    view = WebhookCache([ev.WatchedSource.TENANTS, ev.WatchedSource.POOLS])
    for event in events:
        await view.put(event)
    for source in (
        (ev.WatchedSource.TENANTS, ev.WatchedSource.POOLS) if fresh else (ev.WatchedSource.TENANTS,)
    ):
        await view.put(ev.SourceFresh(NOW, source))
    return view


T4 = ev.PoolObserved(NOW, kind("t4", 16))
LARGE = gpu_pod(annotations={SIZE: "70B"})


async def test_webhook_refuses_a_pod_that_can_never_start() -> None:
    response = await answer(app_of(await view_of(T4)), review(LARGE))
    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    assert "no pool can ever serve this pod" in response["status"]["message"]


async def test_a_dry_run_is_refused_alike() -> None:
    response = await answer(app_of(await view_of(T4)), review(LARGE, dryRun=True))
    assert response["allowed"] is False


async def test_webhook_refuses_nothing_while_its_pools_are_stale() -> None:
    view = await view_of(T4)
    await view.put(ev.SourceStale(NOW, ev.WatchedSource.POOLS))
    assert (await answer(app_of(view), review(LARGE)))["allowed"] is True
    await view.put(ev.SourceFresh(NOW, ev.WatchedSource.POOLS))
    assert (await answer(app_of(view), review(LARGE)))["allowed"] is False


async def test_webhook_accepts_unknown_pools_before_it_received_the_pools() -> None:
    view = WebhookCache()
    await view.put(ev.SourceFresh(NOW, ev.WatchedSource.TENANTS))
    pod = gpu_pod(annotations={POOLS: "nowhere"})
    assert (await answer(app_of(view), review(pod)))["allowed"] is True


async def test_webhook_follows_deleted_and_new_pools() -> None:
    view = await view_of(T4)
    pod = gpu_pod(annotations={POOLS: "t4"})
    assert (await answer(app_of(view), review(pod)))["allowed"] is True
    await view.put(ev.PoolGone(NOW, PoolName("t4")))
    assert (await answer(app_of(view), review(pod)))["allowed"] is False
    await view.put(ev.PoolObserved(NOW, kind("h100", 80), status_capacity={GPU: 8}))
    assert (await answer(app_of(view), review(gpu_pod("2", annotations={SIZE: "70B"}))))["allowed"]


async def test_webhook_refuses_invalid_annotations_before_it_received_the_pools() -> None:
    view = WebhookCache()
    await view.put(ev.SourceFresh(NOW, ev.WatchedSource.TENANTS))
    response = await answer(app_of(view), review(gpu_pod(annotations={MEMORY: "40GB"})))
    assert response["status"]["code"] == 422


async def test_observe_mode_warns_and_refuses_nothing() -> None:
    view = await view_of(T4, ev.PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    for pod in (LARGE, gpu_pod(annotations={MEMORY: "40GB"})):
        response = await answer(app_of(view), review(pod))
        assert response["allowed"] is True
        assert any("Not refused, only observed" in each for each in response["warnings"])
        if "patch" in response:
            patch = msgspec.json.decode(base64.b64decode(response["patch"]))
            assert apply(pod, patch)["spec"] == pod["spec"]


def gang(**words: str) -> dict[str, str]:
    return {f"fairgate.io/gang{key.replace('_', '-')}": value for key, value in words.items()}


@pytest.mark.parametrize(
    ("written", "part"),
    [
        (gang(_min="4"), "has no annotation fairgate.io/gang; name the gang"),
        (gang(**{"": "g"}, _size="8", _min="9"), "9 is more than fairgate.io/gang-size: 8"),
        (gang(**{"": "g"}, _size="8", _min="many"), "'many' is not a whole number from 1"),
        (gang(**{"": "g"}, _size="8", _min="0"), "'0' is not a whole number from 1"),
        (gang(**{"": "job"}, _min="-1"), "'-1' is not a whole number from 1"),
    ],
)
def test_the_minimum_of_a_gang_that_could_never_start_is_refused(
    written: dict[str, str], part: str
) -> None:
    found = refuse_invalid_annotations(PodRequirements({GPU: 1}, written))
    assert found is not None
    assert (found.code, part in found.message) == (422, True)


def test_a_minimum_up_to_the_size_is_accepted() -> None:
    assert (
        refuse_invalid_annotations(
            PodRequirements({GPU: 1}, gang(**{"": "g"}, _size="8", _min="8"))
        )
        is None
    )
    assert (
        refuse_invalid_annotations(PodRequirements({GPU: 1}, gang(**{"": "job"}, _min="8"))) is None
    )
