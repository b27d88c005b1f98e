"""A resize must not take charged cpu or memory outside the fair order."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from app.core import events as ev
from app.core.admission.resizes import Resize, refuse_resize
from app.core.model import Amounts, Millis, Pool, PoolName, Resource
from app.core.policy import Mode, Policy
from app.core.quantities import ManagedResources
from app.core.well_known import GATE
from app.web.webhook.cache import WebhookCache
from tests.support.asgi import call
from tests.support.webhook_app import JSON, app_of, review

CPU, GPU = Resource("cpu"), Resource("nvidia.com/gpu")
GPUS, GPUS_AND_CPU = ManagedResources([GPU]), ManagedResources([GPU, CPU])
PRICED, FREE = Pool(PoolName("h100"), weights={CPU: Fraction(1, 8)}), Pool(PoolName("t4"))
NOW = Millis(0)


def refusal(
    *pools: Pool,
    after: int = 8,
    managed: ManagedResources = GPUS,
    charged: int = 4,
    before: int = 4,
) -> str | None:
    def cpus(count: int) -> Amounts:
        return {CPU: count * 1000, GPU: 1}

    resize = Resize(cpus(charged), cpus(before), cpus(after))
    return refuse_resize(resize, {each.name: each for each in pools}, managed)


@pytest.mark.parametrize(
    ("pool", "managed", "said"),
    [
        (FREE, GPUS_AND_CPU, "cpu is a managed resource"),
        (PRICED, GPUS, "cpu has a weight in pool h100"),
    ],
)
def test_cpu_that_shares_and_limits_count_cannot_grow(
    pool: Pool, managed: ManagedResources, said: str
) -> None:
    sentence = refusal(pool, managed=managed)

    assert sentence is not None
    assert said in sentence
    assert "from 4 to 8" in sentence


def test_cpu_that_no_share_counts_may_grow() -> None:
    assert refusal(FREE) is None
    assert refusal() is None


def test_a_resize_within_the_present_charge_is_allowed() -> None:
    assert refusal(PRICED, after=2) is None
    # The node has not given back the larger amount yet, so the charge still has it.
    assert refusal(PRICED, after=4, charged=4, before=2) is None


def test_infeasible_request_cannot_be_lowered_to_more_than_its_charge() -> None:
    assert refusal(PRICED, after=8, charged=4, before=8) is None
    assert refusal(PRICED, after=6, charged=4, before=8)


def pod(cpus: str, **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpus}, "limits": {GPU: "1"}}
    spec = {"containers": [{"name": "main", "resources": resources}], **more}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}}


async def view_of(*happened: Any) -> WebhookCache:
    view = WebhookCache()
    for each in happened:
        await view.put(each)
    return view


FRESH = [ev.SourceFresh(NOW, s) for s in (ev.WatchedSource.TENANTS, ev.WatchedSource.POOLS)]
POOL = ev.PoolObserved(NOW, PRICED)


async def validate(view: WebhookCache, old: Any, new: Any) -> dict[str, Any]:
    asked = {"operation": "UPDATE", "subResource": "resize", "oldObject": old}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    body = msgspec.json.encode(review(new, resource=resource, **asked))
    reply = await call(app_of(view), "POST", "/validate", body, JSON)
    response: dict[str, Any] = reply.json["response"]
    return response


async def test_the_webhook_refuses_the_growth_of_a_released_pod() -> None:
    view = await view_of(POOL, *FRESH)

    response = await validate(view, pod("4"), pod("8"))

    assert response["allowed"] is False
    assert "cpu has a weight in pool h100" in response["status"]["message"]
    assert (await validate(view, pod("4"), pod("2")))["allowed"] is True


async def test_a_held_pod_may_not_grow_because_its_release_may_not_see_it() -> None:
    gates = [{"name": GATE}]
    view = await view_of(POOL, *FRESH)

    response = await validate(
        view, pod("4", schedulingGates=gates), pod("8", schedulingGates=gates)
    )

    assert response["allowed"] is False


async def test_outdated_pools_refuse_a_resize_and_observe_mode_only_warns() -> None:
    stale = await validate(await view_of(POOL), pod("4"), pod("8"))
    observing = ev.PolicyObserved(NOW, Policy(mode=Mode.OBSERVE))

    assert stale["allowed"] is False
    assert "may be outdated" in stale["status"]["message"]
    response = await validate(await view_of(POOL, observing, *FRESH), pod("4"), pod("8"))
    assert response["allowed"] is True
    assert response["warnings"]
