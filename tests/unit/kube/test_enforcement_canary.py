"""The canary's conclusions from the answers of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.well_known import GATE
from app.kube.enforcement_canary import CREATE, HOLD, RELEASE, Canary, ProofTiming
from app.kube.enforcement_probes import OWN_GATE, SCHEDULER, probe_resource
from app.kube.event_recorder import EnforcementAlarm
from tests.fakes.fake_enforcement_metrics import Guarded

DENIED = ClusterRefused(
    "PATCH: 422 pods is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: "
    "only Fairgate releases",
    422,
)
BY_WEBHOOK = ClusterRefused('403 admission webhook "x.fairgate.io" denied the request: no', 403)
FORBIDDEN = ClusterRefused('403 pods is forbidden: User "x" cannot create resource "pods"', 403)
NOT_FOUND = ClusterRefused("GET: 404", 404)
CONFLICT = ClusterRefused("POST: 409", 409)
OUTAGE = ClusterUnavailable("no answer")

Answer = list[str] | ClusterError


class Server:
    """Answers each method with a pod with these gates, or an error. OTHER: another scheduler."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {
            "POST": [GATE], "OTHER": DENIED, "PATCH": DENIED, "GET": [OWN_GATE, GATE],
        }  # fmt: skip
        self.answers |= answers
        self.asked: list[str] = []
        self.bodies: dict[str, Any] = {}
        self.events: list[str] = []

    async def request(
        self, method: str, path: str, *, query: Any = (), body: Any = None, **more: Any
    ) -> bytes:
        if path.endswith("/events"):
            self.events.append(body["reason"])
            return b"{}"
        self.asked.append(method + (" dry" if ("dryRun", "All") in query else ""))
        self.bodies[self.asked[-1]] = body
        other = method == "POST" and body["spec"].get("schedulerName") == SCHEDULER
        answer = self.answers.get("OTHER" if other else method, [])
        if isinstance(answer, ClusterError):
            raise answer
        gates = [{"name": name} for name in answer]
        return json.dumps({"metadata": {"uid": "u"}, "spec": {"schedulingGates": gates}}).encode()


class Tried:
    """A canary and its results."""

    def __init__(self, server: Server, *checks: str, seconds: float = 3600) -> None:
        self.observes = False
        self.applied = True
        self.asked_whether_applied = 0
        self.guarded = Guarded()
        self.published: list[Mapping[str, str]] = []
        self.canary = Canary(
            server,  # type: ignore[arg-type]
            ["nvidia.com/gpu"],
            seconds=seconds,
            is_applied=self._is_applied,
            observing=lambda: self.observes,
            meters=self.guarded,
            alarm=EnforcementAlarm(
                server, "fairgate-system", clock=iter(range(0, 10**6, 100)).__next__
            ),  # type: ignore[arg-type]
            publish=self._publish,
            checks=checks or (HOLD, CREATE, RELEASE),
            timing=ProofTiming(0, 0, tries=3),
        )

    async def _publish(self, holes: Mapping[str, str]) -> None:
        self.published.append(holes)

    def _is_applied(self) -> bool:
        self.asked_whether_applied += 1
        return self.applied

    async def look(self) -> dict[str, list[bool | None]]:
        await self.canary.probe_all()
        return self.guarded.trials


async def test_all_is_well() -> None:
    server = Server()
    assert await Tried(server).look() == {HOLD: [True], CREATE: [True], RELEASE: [True]}
    assert server.asked == ["POST dry", "POST dry", "GET", "PATCH dry"]
    assert server.bodies["PATCH dry"][-1] == {"op": "remove", "path": "/spec/schedulingGates/1"}
    assert server.events == []


async def test_a_pod_without_our_gate_was_not_held() -> None:
    server = Server(POST=["another"])
    assert (await Tried(server, HOLD).look())[HOLD] == [False]
    assert server.events == ["EnforcementFails"]


async def test_unreachable_webhook_fails_the_check() -> None:
    away = ClusterUnavailable('POST: 500 failed calling webhook "hold.fairgate.io"')
    assert (await Tried(Server(POST=away), HOLD).look())[HOLD] == [False]


async def test_missing_namespace_fails_the_check() -> None:
    assert (await Tried(Server(POST=NOT_FOUND), HOLD).look())[HOLD] == [False]


async def test_removable_gate_fails_the_check() -> None:
    assert (await Tried(Server(PATCH=[OWN_GATE]), RELEASE).look())[RELEASE] == [False]


async def test_a_refusal_by_a_webhook_is_as_good() -> None:
    said = ClusterRefused('403 admission webhook "keep.fairgate.io" denied the request: no', 403)
    assert (await Tried(Server(PATCH=said), RELEASE).look())[RELEASE] == [True]


async def test_refusal_by_missing_rights_fails_the_check() -> None:
    said = ClusterRefused('403 pods "fairgate-canary" is forbidden: User cannot patch', 403)
    assert (await Tried(Server(PATCH=said), RELEASE).look())[RELEASE] == [False]


@pytest.mark.parametrize("method", ["POST", "OTHER", "GET", "PATCH"])
async def test_outage_fails_no_check(method: str) -> None:
    trials = await Tried(Server(**{method: OUTAGE})).look()
    assert False not in [each for results in trials.values() for each in results]
    assert sum(map(len, trials.values())) == 2


async def test_canary_pod_is_created_if_it_is_missing() -> None:
    server = Server(GET=NOT_FOUND, POST=[OWN_GATE, GATE])
    assert (await Tried(server, RELEASE).look())[RELEASE] == [True]
    assert server.asked == ["GET", "POST", "PATCH dry"]
    assert server.bodies["POST"]["spec"]["schedulingGates"] == [{"name": OWN_GATE}]


async def test_no_result_is_recorded_if_another_replica_was_first() -> None:
    assert await Tried(Server(GET=NOT_FOUND, POST=CONFLICT), RELEASE).look() == {}
    assert await Tried(Server(PATCH=NOT_FOUND), RELEASE).look() == {}


async def test_canary_pod_without_its_gate_fails_the_check_and_is_deleted() -> None:
    server = Server(GET=[OWN_GATE])
    assert (await Tried(server, RELEASE).look())[RELEASE] == [False]
    assert server.asked == ["GET", "DELETE"]
    assert server.bodies["DELETE"]["preconditions"] == {"uid": "u"}


async def test_change_to_failure_is_reported_once() -> None:
    server = Server(POST=[])
    tried = Tried(server, HOLD)
    for gates in ([], [], [GATE], [GATE], []):
        server.answers["POST"] = gates
        await tried.look()
    assert tried.guarded.trials[HOLD] == [False, False, True, True, False]
    assert server.events == ["EnforcementFails", "EnforcementFails"]


async def test_mode_observe_sends_no_requests() -> None:
    server = Server(POST=[])
    tried = Tried(server)
    tried.observes = True
    assert await tried.look() == {HOLD: [None], CREATE: [None], RELEASE: [None]}
    assert server.asked == []


async def test_creatable_pod_of_another_scheduler_fails_the_check() -> None:
    assert (await Tried(Server(OTHER=[GATE]), CREATE).look())[CREATE] == [False]
    assert (await Tried(Server(OTHER=FORBIDDEN), CREATE).look())[CREATE] == [False]


# --- regular rounds ---


async def test_no_probe_runs_before_the_watchdog_has_written_the_objects() -> None:
    server = Server(POST=[])
    tried = Tried(server, seconds=0.001)
    tried.applied = False
    running = asyncio.create_task(tried.canary.run())
    async with asyncio.timeout(30):
        while tried.asked_whether_applied < 3:
            await asyncio.sleep(0)
        assert (server.asked, server.events, tried.published) == ([], [], [])
        tried.applied = True
        while not server.events:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_mode_observe_is_published_before_the_watchdog_has_written_the_objects() -> None:
    tried = Tried(Server(), seconds=0.001)
    tried.applied, tried.observes = False, True
    running = asyncio.create_task(tried.canary.run())
    async with asyncio.timeout(30):
        while not tried.published:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


# --- shortly after a restore ---


class Layered(Server):
    """The policy refuses releases, except that the webhook does from the second to the n-th try."""

    def __init__(self, webhook_until: int) -> None:
        super().__init__()
        self._until = webhook_until
        self._times = 0

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        if method == "PATCH":
            self._times += 1
            stands_in = 1 < self._times <= self._until
            self.answers["PATCH"] = BY_WEBHOOK if stands_in else DENIED
        return await super().request(method, path, **more)


async def test_the_second_layer_does_not_prove_the_first() -> None:
    server = Layered(webhook_until=3)
    tried = Tried(server, RELEASE)
    assert await tried.canary.prove_enforcement()  # a first refusal by any layer is usual
    assert len(server.asked) == 2
    assert await tried.canary.prove_enforcement()
    assert len(server.asked) == 2 + 2 * 3
    assert tried.guarded.trials[RELEASE] == [True] * 4


async def test_enforcement_without_timely_proof_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tried = Tried(Layered(webhook_until=9), RELEASE)
    assert await tried.canary.prove_enforcement()
    assert not await tried.canary.prove_enforcement()
    assert [each.message for each in caplog.records] == ["enforcement is not proven"]


async def test_a_hole_is_no_proof() -> None:
    server = Server(POST=[])
    tried = Tried(server)
    assert not await tried.canary.prove_enforcement()
    server.answers["POST"] = [GATE]
    assert await tried.canary.prove_enforcement()


async def test_a_canary_that_is_hurried_does_not_wait_for_its_turn() -> None:
    server = Server()
    tried = Tried(server)
    running = asyncio.create_task(tried.canary.run())
    tried.canary.probe_soon()
    async with asyncio.timeout(30):
        while not server.asked:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize(
    ("managed", "name"),
    [
        (["nvidia.com/gpu"], "nvidia.com/gpu"),
        (["nvidia.com/mig-*", "amd.com/gpu"], "amd.com/gpu"),
        (["nvidia.com/mig-*"], "nvidia.com/mig-canary"),
        (["example.com/*"], "example.com/canary"),
    ],
)
def test_canary_pod_requests_a_managed_resource(managed: list[str], name: str) -> None:
    assert probe_resource(managed) == name


async def test_each_round_publishes_the_open_holes() -> None:
    server = Server(POST=[])
    tried = Tried(server)
    await tried.look()
    assert list(tried.published[-1]) == [HOLD]
    assert "is not held" in tried.published[-1][HOLD]
    server.answers["POST"] = [GATE]
    await tried.look()
    assert tried.published[-1] == {}
    server.answers["POST"] = []
    await tried.look()
    tried.observes = True
    await tried.look()
    assert tried.published[-1] == {}
