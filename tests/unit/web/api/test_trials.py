"""Route /trials: pods that do not exist yet, on the production engine and its worker process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from app.core import events as ev
from app.core.errors import ForecastBusy, ForecastTimeout
from app.core.model import ClaimRef, Quota, UserName
from app.core.podspec.resource_claims import DeviceAsk, DeviceClass, ResourceClaim
from app.core.policy import Mode, Policy
from app.kube.proposed_pods import ProposedPods
from app.ports.forecasts import Estimate, Proposal, Trial
from app.sim.cluster.virtual_cluster import held_pod
from app.sim.forecast.run_times import RunTimes
from app.sim.forecast.trial import simulate_last_wait
from app.sim.forecast.trial_service import TrialRuns
from app.sim.forecast.what_if_service import SECONDS
from app.sim.forecast.worker import P, T, Worker
from tests.support.asgi import Reply, call
from tests.support.call_counts import calls_of
from tests.support.rest_app import GPU, NOW, Both, node, problem, tenant


@pytest.fixture
async def both() -> Both:
    """Two teams on a node of eight devices. A user of team-b holds nothing and has no pods."""
    both = Both()
    both.rights.granted = {("create", "pods/team-a")}
    limit = {"default": Quota(limit={GPU: 6})}
    await both.hear(node("n0", 8), tenant("team-a", quotas=limit), tenant("team-b"))
    both.context = replace(
        both.context,
        proposals=ProposedPods(
            both.context.managed, frozenset({"kube-system"}), both.engine.charge_proposed
        ),
    )
    await both.open()
    return both


@pytest.fixture
async def trials(both: Both) -> AsyncIterator[TrialRuns]:
    """The production implementation with its worker process."""
    worker = Worker(SECONDS)
    made = TrialRuns(lambda: both.engine.queries.snapshot(NOW), RunTimes, worker)
    both.context = replace(both.context, trials=made)
    yield made
    await worker.close()


def pod(gpus: int, **annotations: str) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {
        "metadata": {"annotations": {f"fairgate.io/{k}": v for k, v in annotations.items()}},
        "spec": {"containers": [{"name": "c", "resources": resources}], "priority": 0},
    }


async def post(both: Both, *parts: tuple[int, Any], **more: Any) -> Reply:
    pods = [{"count": count, "pod": document} for count, document in parts]
    body = {"namespace": "team-a", "pods": pods, **more}
    headers = {"authorization": "Bearer alices", "content-type": "application/json"}
    return await call(both.app, "POST", "/v1/trials", json.dumps(body).encode(), headers)


async def test_pods_that_fit_start_now(both: Both, trials: TrialRuns) -> None:
    told = (await post(both, (2, pod(3)))).json
    assert (told["state"], told["pods"], told["startsNow"]) == ("fits", 2, 2)
    assert (told["tenant"], told["user"], told["pools"]) == ("team-a", "alice", ["default"])
    assert told["request"]["nvidia.com/gpu"] == "6"
    assert told["simulatedSeconds"] == 0


async def test_a_pod_beyond_the_limit_waits_and_the_remedy_is_named(
    both: Both, trials: TrialRuns
) -> None:
    told = (await post(both, (3, pod(3)))).json
    assert (told["state"], told["startsNow"], told["rule"]) == ("waits", 2, "limit")
    assert "6 nvidia.com/gpu limit" in told["reason"]
    assert any("raising the limit of tenant team-a" in each for each in told["remedies"])
    # Pods without a known run time run for one hour in the simulation.
    assert told["simulatedSeconds"] == 3600
    assert "one hour" in told["assumed"]
    assert (told["estimate"], told["estimateWithheld"] is None) == (None, False)


async def test_a_declared_run_time_of_others_shortens_the_simulated_wait(
    both: Both, trials: TrialRuns
) -> None:
    told = (await post(both, (2, pod(4, **{"max-runtime": "10m"})))).json
    assert (told["startsNow"], told["simulatedSeconds"]) == (1, 600)


async def test_pods_wait_behind_those_of_the_queue(both: Both, trials: TrialRuns) -> None:
    wall = held_pod("wall", "team-b", 8, user="bob")
    await both.see(replace(wall, gates=(), release_annotation="1.1", started_at=NOW))
    await both.see(*(held_pod(f"p{n}", "team-a", 6, user="alice", since=NOW) for n in range(3)))
    told = (await post(both, (1, pod(6)))).json
    assert (told["state"], told["position"], told["length"]) == ("waits", 4, 4)
    assert told["rule"] == "fair order"
    assert "bob" not in json.dumps(told)


async def test_capacity_that_a_reclaim_must_free_first_is_not_free_now(
    both: Both, trials: TrialRuns
) -> None:
    guarantee = {"default": Quota(guarantee={GPU: 8})}
    await both.hear(tenant("team-a", quotas=guarantee))
    for number in range(2):  # borrowed for an hour, which is longer than minRuntime
        borrower = held_pod(f"b{number}", "team-b", 4, user="bob", since=NOW - 3_600_000)
        release = f"1.{number + 1}"
        await both.see(
            replace(borrower, gates=(), release_annotation=release, started_at=borrower.created_at)
        )
    told = (await post(both, (1, pod(4)))).json
    assert (told["state"], told["startsNow"]) == ("waits", 0)
    assert told["simulatedSeconds"] < 3600


async def test_a_pod_larger_than_every_node_never_starts(both: Both, trials: TrialRuns) -> None:
    both.rights.granted = {("create", "pods/team-b")}
    told = (await post(both, (1, pod(16)), namespace="team-b")).json
    assert (told["rule"], told["simulatedSeconds"]) == ("no pool", None)
    assert "16 nvidia.com/gpu asked, 8 in all its ready nodes" in told["reason"]
    assert "four days" in told["estimateWithheld"]


async def test_the_pods_of_a_job_gang_start_together(both: Both, trials: TrialRuns) -> None:
    both.rights.granted = {("create", "jobs/team-a")}
    gang = (7, pod(1, gang="job"))
    told = (await post(both, gang, kind="Job", name="train")).json
    assert (told["gang"], told["startsNow"], told["rule"]) == ("job/train", 0, "limit")
    told = (await post(both, (6, pod(1, gang="job")), kind="Job", name="train")).json
    assert (told["state"], told["startsNow"]) == ("fits", 6)


async def test_replicated_jobs_that_start_in_order_are_gangs_of_their_own(
    both: Both, trials: TrialRuns
) -> None:
    both.rights.granted = {("create", "jobsets/team-a")}
    parts = []
    for name in ("driver", "worker"):
        document = pod(1, gang="job")
        document["metadata"]["labels"] = {"jobset.sigs.k8s.io/replicatedjob-name": name}
        parts.append((4, document))
    told = (await post(both, *parts, kind="JobSet", name="train")).json
    assert (told["gang"], told["startsNow"], told["rule"]) == ("jobset/train", 0, "limit")
    told = (await post(both, *parts, kind="JobSet", name="train", inOrder=True)).json
    assert (told["gang"], told["startsNow"], told["rule"]) == (None, 4, "limit")


async def test_claims_that_do_not_exist_yet_count(both: Both, trials: TrialRuns) -> None:
    await both.hear(ev.ClassObserved(NOW, DeviceClass("gpu.example.com", GPU)))
    request = {"name": "r", "exactly": {"deviceClassName": "gpu.example.com", "count": 2}}
    claims = {"gpu": {"devices": {"requests": [request]}}}
    alone = pod(0)
    alone["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "two"}]
    entry = {"count": 4, "pod": alone, "claims": claims}
    told = (await post(both, pods=[entry])).json
    assert (told["request"]["nvidia.com/gpu"], told["startsNow"], told["rule"]) == ("8", 3, "limit")
    assert told["pods"] == 4
    shared = {"resourceClaimName": "shared"}
    alone["spec"]["resourceClaims"] = [{"name": "gpu", **shared}]
    told = (await post(both, pods=[entry])).json
    assert (told["request"]["nvidia.com/gpu"], told["pods"], told["state"]) == ("2", 4, "fits")
    alone["spec"]["resourceClaims"].append({"name": "again", **shared})
    claims["again"] = claims["gpu"]
    told = (await post(both, pods=[entry])).json
    assert (told["request"]["nvidia.com/gpu"], told["pods"]) == ("2", 4)
    assert "no ResourceClaim shared" in problem(await post(both, (1, alone)))
    request["exactly"]["deviceClassName"] = "none"
    assert "no DeviceClass none" in problem(await post(both, pods=[entry]))


@pytest.mark.parametrize(
    "requests",
    [
        [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}] * 33,
        [
            {
                "name": "r",
                "firstAvailable": [{"name": "a", "deviceClassName": "gpu.example.com"}] * 9,
            }
        ],
    ],
)
async def test_a_claim_that_the_api_server_would_refuse_is_refused(
    both: Both, trials: TrialRuns, requests: list[dict[str, Any]]
) -> None:
    document = pod(0)
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    entry = {"pod": document, "claims": {"gpu": {"devices": {"requests": requests}}}}
    assert "at most 32 requests" in problem(await post(both, pods=[entry]))


async def test_a_pod_that_the_webhook_would_refuse_is_refused(
    both: Both, trials: TrialRuns
) -> None:
    document = pod(0)
    claim = {"name": "gpu", "resourceClaimTemplateName": "t"}
    document["spec"]["resourceClaims"] = [claim] * 51
    assert "at most 50 resource claims" in problem(await post(both, (1, document)))


async def test_the_cost_of_a_trial_does_not_grow_with_claims_times_copies(both: Both) -> None:
    await both.hear(ev.ClassObserved(NOW, DeviceClass("gpu.example.com", GPU)))
    document = pod(0)
    names = [f"c{number}" for number in range(50)]
    document["spec"]["resourceClaims"] = [
        {"name": name, "resourceClaimTemplateName": "t"} for name in names
    ]
    asks = [{"name": "r", "exactly": {"deviceClassName": "gpu.example.com"}}] * 32
    claims = {name: {"devices": {"requests": asks}} for name in names}
    assert both.context.proposals is not None

    def calls(count: int) -> int:
        proposal = Proposal("team-a", "Job", "j", [(count, document, claims)], in_order=False)
        return calls_of(lambda: reads(proposal, UserName("alice"), NOW))

    reads = both.context.proposals.read
    many, few = calls(1000), calls(2)
    assert many - few < 100 * 1000


async def test_pods_that_share_a_claim_in_use_start_in_its_pool(
    both: Both, trials: TrialRuns
) -> None:
    await both.hear(ev.ClassObserved(NOW, DeviceClass("gpu.example.com", GPU)))
    ask = DeviceAsk("gpu.example.com", 2)
    await both.hear(ev.ClaimObserved(NOW, ResourceClaim("team-a", "shared", ((ask,),))))
    user = replace(
        held_pod("user", "team-a", 0), claims=(ClaimRef("gpu", "shared"),), container_requests={}
    )
    await both.see(replace(user, gates=(), release_annotation="1.1", node="n0", pool="default"))
    document = pod(0)
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "shared"}]
    told = (await post(both, (2, document))).json
    assert (told["state"], told["pods"], told["request"]) == ("fits", 2, {})
    document["metadata"]["annotations"] = {"fairgate.io/pools": "other"}
    assert (await post(both, (1, document))).json["pools"] == ["default"]


async def test_pods_without_devices_are_not_held(both: Both, trials: TrialRuns) -> None:
    told = (await post(both, (1, pod(0)))).json
    assert (told["state"], told["startsNow"], told["pools"]) == ("unmanaged", 1, [])


async def test_trial_in_mode_observe_reports_the_pod_as_unmanaged(
    both: Both, trials: TrialRuns
) -> None:
    await both.hear(ev.PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    told = (await post(both, (3, pod(8)))).json
    assert (told["state"], "only observes" in told["reason"]) == ("unmanaged", True)


async def test_trial_does_not_change_the_live_engine(both: Both, trials: TrialRuns) -> None:
    before = both.engine.queries.snapshot(NOW)
    await post(both, (3, pod(8)))
    assert both.engine.queries.snapshot(NOW) == before


async def test_the_right_to_create_the_pods_or_their_object_is_needed(
    both: Both, trials: TrialRuns
) -> None:
    both.rights.granted = {("create", "jobs/team-a"), ("create", "pods/team-b")}
    reply = await post(both, (1, pod(1)))
    assert reply.status == 403
    assert "may not create pods in namespace team-a" in problem(reply)
    assert (await post(both, (1, pod(1)), kind="Deployment")).status == 403
    assert (await post(both, (1, pod(1)), kind="Job")).status == 200


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(0, pod(1))],
        [(600, pod(1)), (600, pod(1))],
        [(1, {"spec": {"containers": "all"}})],
        [(1, {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "many"}}}]}})],
        [(1, {"spec": {"nodeSelector": {"a": "\ud800"}}})],
        [(1, {"spec": {"resourceClaims": [{"name": "gpu"}]}})],
    ],
)
async def test_invalid_pod_is_refused(both: Both, trials: TrialRuns, parts: Any) -> None:
    reply = await post(both, *parts)
    assert reply.status == 422, reply.body
    assert problem(reply)


async def test_a_submitter_in_the_document_does_not_count(both: Both, trials: TrialRuns) -> None:
    told = (await post(both, (3, pod(3, submitter="bob")))).json
    assert (told["user"], "team-a/alice" in told["reason"]) == ("alice", True)


async def test_an_estimate_is_given_if_it_is_no_guess(both: Both, trials: TrialRuns) -> None:
    class Sure:
        def estimate_from_wait(self, seconds: float, at: int) -> Estimate:
            return Estimate(int(seconds), 2 * int(seconds), NOW)

    both.context = replace(both.context, forecasts=Sure())  # type: ignore[arg-type]
    told = (await post(both, (3, pod(3)))).json
    assert (told["estimate"]["p50"], told["estimate"]["p90"]) == (3600, 7200)
    assert told["estimateWithheld"] is None


class SlowWorker(Worker):
    """Takes too long to simulate the waits of pods."""

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if function is simulate_last_wait:
            raise ForecastTimeout("The simulation took more than 20 s and was stopped.")
        return await super().call(function, *args, **kwargs)


async def test_a_slow_simulation_leaves_out_the_start_alone(both: Both) -> None:
    worker = SlowWorker(SECONDS)
    made = TrialRuns(lambda: both.engine.queries.snapshot(NOW), RunTimes, worker)
    both.context = replace(both.context, trials=made)
    told = (await post(both, (3, pod(3)))).json
    await worker.close()
    assert (told["state"], told["tenant"], told["startsNow"]) == ("waits", "team-a", 2)
    assert (told["pools"], told["rule"]) == (["default"], "limit")
    assert "6 nvidia.com/gpu limit" in told["reason"]
    assert (told["estimate"], told["simulatedSeconds"]) == (None, None)
    assert told["estimateWithheld"] == "The simulation took more than 20 s and was stopped."


async def test_a_user_has_one_trial_at_a_time(both: Both, trials: TrialRuns) -> None:
    import asyncio

    pods = [held_pod("p", "team-a", 1)]
    same = [asyncio.create_task(trials.simulate_pods(UserName("alice"), pods)) for _ in range(2)]
    other = asyncio.create_task(trials.simulate_pods(UserName("bob"), pods))
    outcomes = await asyncio.gather(*same, other, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Trial, ForecastBusy, Trial]


async def test_service_accounts_of_a_namespace_have_one_trial_at_a_time(
    both: Both, trials: TrialRuns
) -> None:
    """An admin of the namespace may create any number."""
    import asyncio

    pods = [held_pod("p", "team-a", 1)]
    names = [f"system:serviceaccount:{each}" for each in ("team-a:x", "team-a:y", "team-b:x")]
    tasks = [asyncio.create_task(trials.simulate_pods(UserName(name), pods)) for name in names]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in outcomes] == [Trial, ForecastBusy, Trial]
