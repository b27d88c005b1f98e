"""Contract of the `Releaser`, for the fake and for a real API server."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Protocol

import pytest

from app.core.effects import Release
from app.core.errors import ClusterRefused, ClusterUnavailable, PodUnyielding
from app.core.model import ReleaseOutcome
from app.core.well_known import ANNOTATION_RELEASE, GATE, LABEL_POOL, RELEASE_HELD
from app.kube.client import JSON_PATCH, MERGE_PATCH, Client
from app.kube.pod_releaser import PodReleaser
from app.ports.cluster import Releaser
from tests.fakes.fake_pods import FakeReleaser, StoredPod
from tests.support.releaser_cases import order_for

PODS = "/api/v1/namespaces/default/pods"
NOW = [("gracePeriodSeconds", "0")]


class World(Protocol):
    """An API server that can misbehave for the `Releaser` only."""

    releaser: Releaser
    may_act: bool

    async def hold(self) -> Release:
        """Create a held pod and return the `Release` effect for it."""

    async def state(self, order: Release) -> tuple[bool, str, str | None]:
        """Return whether the pod is held, its stamp, and its pool."""

    async def stamp(self, order: Release, value: str) -> None: ...
    async def delete(self, order: Release) -> None: ...
    async def replace(self, order: Release) -> None: ...
    async def finish(self, order: Release) -> None: ...
    def be_silent(self, silent: bool) -> None: ...
    def be_deaf(self) -> None: ...
    def be_stubborn(self, order: Release) -> None: ...
    def delay(self) -> None: ...
    async def deliver(self) -> None: ...


class FakeWorld:
    def __init__(self) -> None:
        self.may_act = True
        self.fake = FakeReleaser(lambda: self.may_act)
        self.releaser: Releaser = self.fake

    def _pod(self, order: Release) -> StoredPod:
        return self.fake.pods["default", order.intent.ref.name]

    async def hold(self) -> Release:
        name = uuid.uuid4().hex
        self.fake.pods["default", name] = StoredPod(uid=name)
        return order_for(name, name)

    async def state(self, order: Release) -> tuple[bool, str, str | None]:
        pod = self._pod(order)
        return pod.held, pod.stamp, pod.labels.get(LABEL_POOL)

    async def stamp(self, order: Release, value: str) -> None:
        self._pod(order).stamp = value

    async def delete(self, order: Release) -> None:
        del self.fake.pods["default", order.intent.ref.name]

    async def replace(self, order: Release) -> None:
        self._pod(order).uid = "another"

    async def finish(self, order: Release) -> None:
        pod = self._pod(order)
        pod.finished, pod.held = True, False

    def be_silent(self, silent: bool) -> None:
        self.fake.silent = silent

    def be_deaf(self) -> None:
        self.fake.deaf = True

    def be_stubborn(self, order: Release) -> None:
        self.fake.stubborn.add(order.intent.ref.name)

    def delay(self) -> None:
        self.fake.late = []

    async def deliver(self) -> None:
        for order in self.fake.late or ():
            self.fake.apply(order)


class Trickster:
    """A client that loses requests or replies, or delays patches."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.silent = self.deaf = self.delayed = False
        self.refusals: list[ClusterRefused] = []
        self.sent = 0
        self.pass_first = 0
        self.limits: list[tuple[str, float]] = []
        self._late: list[tuple[Any, Any]] = []

    async def request(self, *args: Any, **kwargs: Any) -> bytes:
        if self.silent:
            raise ClusterUnavailable("no answer")
        patch = args[0] == "PATCH"
        self.sent += patch
        if patch:
            self.limits.append((dict(kwargs["query"])["timeout"], kwargs["timeout"]))
        if patch and self.refusals:
            raise self.refusals.pop(0)
        if patch and self.pass_first:
            self.pass_first -= 1
        elif patch and self.delayed:
            self.delayed = False
            self._late.append((args, kwargs))
            raise ClusterUnavailable("no answer")
        answer = await self._client.request(*args, **kwargs)
        if patch and self.deaf:
            raise ClusterUnavailable("no answer")
        return answer

    async def deliver(self) -> None:
        for args, kwargs in self._late:
            with pytest.raises(ClusterRefused):
                await self._client.request(*args, **kwargs)


class RealWorld:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.may_act = True
        self.remaining = 60.0
        self.trickster = Trickster(client)
        self.releaser: Releaser = PodReleaser(
            self.trickster,  # type: ignore[arg-type]
            seconds_left=lambda: self.remaining if self.may_act else 0.0,
        )

    async def _create(self, name: str) -> str:
        body = {
            "metadata": {
                "name": name,
                "labels": {"made-by": "test-releaser"},
                "annotations": {ANNOTATION_RELEASE: RELEASE_HELD},
            },
            "spec": {
                "schedulingGates": [{"name": GATE}],
                "containers": [{"name": "c", "image": "none"}],
            },
        }
        answer = await self._client.request("POST", PODS, body=body)
        return str(json.loads(answer)["metadata"]["uid"])

    async def _read(self, order: Release) -> Any:
        return json.loads(await self._client.request("GET", f"{PODS}/{order.intent.ref.name}"))

    async def hold(self) -> Release:
        name = f"release-{uuid.uuid4().hex[:8]}"
        return order_for(name, await self._create(name))

    async def state(self, order: Release) -> tuple[bool, str, str | None]:
        pod = await self._read(order)
        meta = pod["metadata"]
        held = bool(pod["spec"].get("schedulingGates"))
        return held, meta["annotations"][ANNOTATION_RELEASE], meta["labels"].get(LABEL_POOL)

    async def _patch(self, order: Release, under: str, kind: str, body: Any) -> None:
        path = f"{PODS}/{order.intent.ref.name}{under}"
        await self._client.request("PATCH", path, body=body, content_type=kind)

    async def stamp(self, order: Release, value: str) -> None:
        body = {"metadata": {"annotations": {ANNOTATION_RELEASE: value}}}
        await self._patch(order, "", MERGE_PATCH, body)

    async def delete(self, order: Release) -> None:
        await self._client.request("DELETE", f"{PODS}/{order.intent.ref.name}", query=NOW)

    async def replace(self, order: Release) -> None:
        await self.delete(order)
        await self._create(order.intent.ref.name)

    async def finish(self, order: Release) -> None:
        open_nowhere = [  # or the scheduler binds it, and its node says that it runs
            {"op": "add", "path": "/spec/nodeSelector", "value": {"example.com/nowhere": "yes"}},
            {"op": "remove", "path": "/spec/schedulingGates"},
        ]
        await self._patch(order, "", JSON_PATCH, open_nowhere)
        await self._patch(order, "/status", MERGE_PATCH, {"status": {"phase": "Succeeded"}})

    def be_silent(self, silent: bool) -> None:
        self.trickster.silent = silent

    def be_deaf(self) -> None:
        self.trickster.deaf = True

    def be_stubborn(self, order: Release) -> None:
        self.trickster.refusals = [ClusterRefused("not by you", 403)] * 9

    def delay(self) -> None:
        self.trickster.delayed = True

    async def deliver(self) -> None:
        await self.trickster.deliver()


@pytest.fixture
async def real(request: pytest.FixtureRequest) -> AsyncIterator[RealWorld]:
    client = await Client.connect(request.getfixturevalue("cluster").kubeconfig)
    yield RealWorld(client)
    ours = [("labelSelector", "made-by=test-releaser")]
    await client.request("DELETE", PODS, query=NOW + ours)
    await client.close()


@pytest.fixture(params=["fake", "real"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "fake":
        return FakeWorld()
    return request.getfixturevalue("real")  # type: ignore[no-any-return]


async def test_release_takes_the_gate_and_stamps_the_pod(world: World) -> None:
    order = await world.hold()
    assert await world.releaser.release(order) is ReleaseOutcome.RELEASED
    assert await world.state(order) == (False, "7.3", "h100")


async def test_pod_is_released_once(world: World) -> None:
    order = await world.hold()
    await world.releaser.release(order)
    again = replace(order, intent=replace(order.intent, sequence=4))
    assert await world.releaser.release(again) is ReleaseOutcome.RELEASED
    assert await world.state(order) == (False, "7.3", "h100")


async def test_deleted_pod_is_gone(world: World) -> None:
    order = await world.hold()
    await world.delete(order)
    assert await world.releaser.release(order) is ReleaseOutcome.GONE
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.GONE


async def test_another_pod_of_that_name_is_not_touched(world: World) -> None:
    order = await world.hold()
    await world.replace(order)
    assert await world.releaser.release(order) is ReleaseOutcome.GONE
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.GONE
    assert await world.state(order) == (True, RELEASE_HELD, None)


async def test_release_of_a_finished_pod_has_outcome_gone(world: World) -> None:
    order = await world.hold()
    await world.finish(order)
    assert await world.releaser.release(order) is ReleaseOutcome.GONE
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.GONE


async def test_fenced_pod_cannot_be_released_by_an_old_leader(world: World) -> None:
    order = await world.hold()
    await world.releaser.fence(order.intent.ref, 9)
    assert await world.releaser.release(order) is ReleaseOutcome.HELD
    assert await world.state(order) == (True, "0@9", None)
    newer = replace(order, expected_annotation="0@9", intent=replace(order.intent, epoch=9))
    assert await world.releaser.release(newer) is ReleaseOutcome.RELEASED


async def test_fence_leaves_released_pods_alone(world: World) -> None:
    order = await world.hold()
    await world.releaser.release(order)
    await world.releaser.fence(order.intent.ref, 9)
    assert await world.state(order) == (False, "7.3", "h100")


async def test_fence_of_a_missing_pod_is_harmless(world: World) -> None:
    order = await world.hold()
    await world.delete(order)
    await world.releaser.fence(order.intent.ref, 9)


async def test_fence_that_cannot_be_set_raises(world: World) -> None:
    order = await world.hold()
    world.be_silent(True)
    with pytest.raises(ClusterUnavailable):
        await world.releaser.fence(order.intent.ref, 9)


async def test_refused_pod_change_raises_pod_unyielding(world: World) -> None:
    order = await world.hold()
    world.be_stubborn(order)
    with pytest.raises(PodUnyielding):
        await world.releaser.fence(order.intent.ref, 9)
    with pytest.raises(PodUnyielding):
        await world.releaser.read_outcome(order)
    await world.delete(order)
    assert await world.releaser.fence(order.intent.ref, 9) is ReleaseOutcome.GONE


async def test_lost_reply_is_unknown_until_looked_at(world: World) -> None:
    order = await world.hold()
    world.be_deaf()
    assert await world.releaser.release(order) is None
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.RELEASED


async def test_lost_request_is_unknown_until_looked_at(world: World) -> None:
    order = await world.hold()
    world.be_silent(True)
    assert await world.releaser.release(order) is None
    assert await world.releaser.read_outcome(order) is None
    world.be_silent(False)
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.HELD


async def test_patch_that_arrives_after_the_outcome_was_read_does_nothing(world: World) -> None:
    order = await world.hold()
    world.delay()
    assert await world.releaser.release(order) is None
    assert await world.releaser.read_outcome(order) is ReleaseOutcome.HELD
    await world.deliver()
    assert await world.state(order) == (True, "0@7.3", None)


async def test_replica_without_leadership_sends_no_release(world: World) -> None:
    order = await world.hold()
    world.may_act = False
    assert await world.releaser.release(order) is ReleaseOutcome.HELD
    assert await world.state(order) == (True, RELEASE_HELD, None)


async def test_only_one_of_many_concurrent_releases_is_applied(world: World) -> None:
    order = await world.hold()
    orders = [replace(order, intent=replace(order.intent, sequence=n)) for n in range(1, 9)]
    answers = await asyncio.gather(*(world.releaser.release(each) for each in orders))
    assert set(answers) == {ReleaseOutcome.RELEASED}
    held, stamp, _ = await world.state(order)
    assert not held
    assert stamp in {each.stamp for each in orders}


@pytest.mark.parametrize("status", [409, 429])
async def test_release_is_repeated_if_the_server_is_busy(real: RealWorld, status: int) -> None:
    order = await real.hold()
    real.trickster.refusals = [ClusterRefused("busy", status, retry_after=0)]
    assert await real.releaser.release(order) is ReleaseOutcome.RELEASED


async def test_release_is_given_up_if_the_server_stays_busy(real: RealWorld) -> None:
    order = await real.hold()
    real.trickster.refusals = [ClusterRefused("busy", 429) for _ in range(10)]
    assert await real.releaser.release(order) is ReleaseOutcome.HELD
    assert real.trickster.sent < 10


async def test_leader_that_ends_does_not_repeat_its_patch(real: RealWorld) -> None:
    order = await real.hold()
    real.trickster.refusals = [ClusterRefused("busy", 429, retry_after=1)]
    releasing = asyncio.create_task(real.releaser.release(order))
    while not real.trickster.sent:
        await asyncio.sleep(0)
    real.may_act = False
    assert await releasing is ReleaseOutcome.HELD
    assert real.trickster.sent == 1
    assert await real.state(order) == (True, RELEASE_HELD, None)


async def test_missing_right_is_logged_and_the_pod_stays_held(
    real: RealWorld, caplog: pytest.LogCaptureFixture
) -> None:
    order = await real.hold()
    real.trickster.refusals = [ClusterRefused("pods is forbidden", 403)]
    assert await real.releaser.release(order) is ReleaseOutcome.HELD
    assert [record.getMessage() for record in caplog.records] == ["release refused"]


async def test_each_lost_patch_of_a_leader_is_fenced(world: World) -> None:
    order = await world.hold()
    for sequence, tested in ((3, RELEASE_HELD), (4, "0@7.3"), (5, "0@7.4")):
        order = replace(
            order, expected_annotation=tested, intent=replace(order.intent, sequence=sequence)
        )
        world.delay()
        assert await world.releaser.release(order) is None
        assert await world.releaser.read_outcome(order) is ReleaseOutcome.HELD
    await world.deliver()
    assert await world.state(order) == (True, "0@7.5", None)


async def test_lost_patch_is_fenced_after_the_annotation_is_restored(
    real: RealWorld,
) -> None:
    order = replace(await real.hold(), expected_annotation="", has_annotations=True)
    real.trickster.pass_first = 1  # the stamp arrives, the release is on its way
    real.delay()
    assert await real.releaser.release(order) is None
    assert await real.releaser.read_outcome(order) is ReleaseOutcome.HELD
    await real.deliver()
    assert await real.state(order) == (True, "0@7.3", None)


async def test_no_patch_may_take_longer_than_the_lease(real: RealWorld) -> None:
    real.remaining = 2.0
    assert await real.releaser.release(await real.hold()) is ReleaseOutcome.RELEASED
    assert real.trickster.limits == [("1600ms", 2.0)]
    real.remaining = 60.0
    assert await real.releaser.release(await real.hold()) is ReleaseOutcome.RELEASED
    assert real.trickster.limits[1:] == [("5000ms", 6.0)]
    real.remaining = 0.01
    assert await real.releaser.release(await real.hold()) is ReleaseOutcome.HELD
    assert len(real.trickster.limits) == 2
