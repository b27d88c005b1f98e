"""A released pod keeps its claims, for any action of a tenant and any delay of messages.

The API server is a model with the rules of Kubernetes. A name is free only after the object is
gone, and an object with a finalizer stays. A deletion reads the finalizers first and removes the
object later, but before the next turn. Watches and writes may be late, and leaders may change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Bypassed, ClaimAddress, Effect, ProtectClaim, Release, UnprotectClaim
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.errors import ClusterRefused
from app.core.model import ClaimRef, Millis, Node, NodeName, Pod, ReleaseOutcome, Resource, Uid
from app.core.podspec.resource_claims import DeviceAsk, DeviceClass, ResourceClaim
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_claim_protector import FakeClaims
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
NAMES = ("c0", "c1")
Write = Release | ProtectClaim | UnprotectClaim


@dataclass
class World:
    """The API server, one leader at a time, and the messages between them."""

    server: FakeClaims = field(default_factory=FakeClaims)
    pods: dict[Uid, Pod] = field(default_factory=dict)
    late_claims: list[ev.NewsEvent] = field(default_factory=list)
    late_pods: list[ev.NewsEvent] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    deletions: list[Uid] = field(default_factory=list)
    """Claims that had no finalizer when their deletion began."""
    bypassed: int = 0
    epoch: int = 0
    now: int = 1_000_000
    made: int = 0

    def __post_init__(self) -> None:
        self.lead()

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def lead(self) -> None:
        """Start a new leader from the API server's state. Pending removals stay pending."""
        self.epoch += 1
        self.writes = [each for each in self.writes if not isinstance(each, Release)]
        self.late_claims, self.late_pods = [], []
        self.engine = Engine(
            ManagedResources([GPU]), EngineOptions(resource_by_device_class={"gpu": GPU})
        )
        room = {GPU: 4, PODS: 100}
        self.hear(ev.NodeObserved(self.at, Node(NodeName("n"), {}, room, True)))
        self.hear(ev.ClassObserved(self.at, DeviceClass("nic")))
        for pod in self.pods.values():
            self.hear(ev.PodObserved(self.at, pod))
        for claim in self.server.claims.values():
            self.hear(ev.ClaimObserved(self.at, claim))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        self.hear(ev.Installed(self.at, Millis(0)))
        self.hear(ev.LeadershipGained(self.at, self.epoch))
        self.hear(ev.StoreReady(self.at))

    def hear(self, event: ev.NewsEvent) -> None:
        self._note(self.engine.handle(event))

    def queue_key(self) -> None:
        while self.deletions:
            self.remove(0)
        self.now += 7_000
        self.decide()

    def decide(self) -> None:
        self._note(self.engine.handle(ev.Pass(self.at)))

    def _note(self, effects: Sequence[Effect]) -> None:
        self.bypassed += sum(isinstance(each, Bypassed) for each in effects)
        self.writes += [each for each in effects if isinstance(each, Write)]

    def create(self, name: str, kind: str) -> None:
        if ("a", name) not in self.server.claims:
            self.made += 1
            uid = Uid(f"u{self.made}")
            asked = ((DeviceAsk(kind, 1),),)
            claim = ResourceClaim("a", name, asked, uid=uid, resource_version=f"made-{uid}")
            self.server.claims[claim.key] = claim
            self.late_claims.append(ev.ClaimObserved(self.at, claim))

    def begin_deletion(self, name: str) -> None:
        claim = self.server.claims.get(("a", name))
        if claim is not None and not claim.has_finalizer:
            self.deletions.append(claim.uid)

    def remove(self, which: int) -> None:
        """Remove the object of a deletion, whatever finalizers it has now."""
        if not self.deletions:
            return
        uid = self.deletions.pop(which % len(self.deletions))
        for key in [k for k, claim in self.server.claims.items() if claim.uid == uid]:
            del self.server.claims[key]
            self.late_claims.append(ev.ClaimGone(self.at, *key))

    def race(self, name: str) -> None:
        """Begin a deletion, run the leader, then remove the object."""
        self.begin_deletion(name)
        for _ in range(4):
            self.write_all()
            self.deliver(self.late_claims)
            self.deliver(self.late_pods)
            self.decide()
        self.remove(0)
        self.create(name, "gpu")

    def delete(self, name: str) -> None:
        claim = self.server.claims.get(("a", name))
        if claim is None:
            return
        if claim.has_finalizer:
            self.made += 1
            going = replace(claim, terminating=True, resource_version=f"going-{self.made}")
            self.server.claims[claim.key] = going
            self.late_claims.append(ev.ClaimObserved(self.at, going))
        else:
            del self.server.claims[claim.key]
            self.late_claims.append(ev.ClaimGone(self.at, "a", name))

    def submit(self, number: int, names: Sequence[str]) -> None:
        refs = tuple(ClaimRef(f"e{i}", name) for i, name in enumerate(dict.fromkeys(names)))
        plain = {PODS: 1}
        pod = replace(
            held_pod(f"p{number:03}", "a"), demand=plain, container_requests=plain, claims=refs
        )
        self.pods[pod.uid] = pod
        self.late_pods.append(ev.PodObserved(self.at, pod))

    def end(self, which: int) -> None:
        if self.pods:
            uid = sorted(self.pods)[which % len(self.pods)]
            del self.pods[uid]
            self.late_pods.append(ev.PodGone(self.at, uid))

    def carry_out(self, which: int) -> None:
        """Apply one of the pending writes."""
        if not self.writes:
            return
        write = self.writes.pop(which % len(self.writes))
        before = dict(self.server.claims)
        match write:
            case Release():
                self._release(write)
            case ProtectClaim(ref):
                self._protect(ref)
            case UnprotectClaim(ref, version):
                asyncio.run(self.server.unprotect(ref, version))
        for key in before.keys() | self.server.claims.keys():
            claim = self.server.claims.get(key)
            if claim is None:
                self.late_claims.append(ev.ClaimGone(self.at, *key))
            elif claim != before.get(key) or claim.resource_version != before[key].resource_version:
                self.late_claims.append(ev.ClaimObserved(self.at, claim))

    def write_all(self) -> None:
        while self.writes:
            self.carry_out(0)

    def _protect(self, ref: ClaimAddress) -> None:
        with contextlib.suppress(ClusterRefused):
            asyncio.run(self.server.protect(ref))

    def _stamped(self, ref: ClaimAddress) -> bool:
        try:
            claim = asyncio.run(self.server.stamp_release(ref))
        except ClusterRefused:
            return False
        return claim.has_finalizer and not claim.terminating

    def _release(self, order: Release) -> None:
        ref, answer = order.intent.ref, ReleaseOutcome.HELD
        pod = self.pods.get(ref.uid)
        claims = [ClaimAddress(grant.uid, ref.namespace, grant.name) for grant in order.claims]
        if all(self._stamped(each) for each in claims):
            answer = ReleaseOutcome.RELEASED if pod is not None else ReleaseOutcome.GONE
        if pod is not None and answer is ReleaseOutcome.RELEASED:
            self.pods[ref.uid] = released = replace(
                pod, gates=(), release_annotation=order.stamp, granted_claims=order.claims or None
            )
            self.late_pods.append(ev.PodObserved(self.at, released))
        self.hear(ev.ReleaseAnswered(self.at, ref.uid, answer))

    def deliver(self, late: list[ev.NewsEvent]) -> None:
        events, late[:] = list(late), []
        for event in events:
            self.hear(event)

    def check(self) -> None:
        """Check that every released pod finds, by name, the claims that it was released for."""
        for pod in self.pods.values():
            for grant in pod.granted_claims or ():
                claim = self.server.claims.get(("a", grant.name))
                assert claim is not None, f"{grant.name} of {pod.name} is gone"
                assert claim.uid == grant.uid, f"{grant.name} of {pod.name} was exchanged"

    def settle(self) -> None:
        """Deliver all messages until no write is pending."""
        for _ in range(100):
            self.deliver(self.late_claims)
            self.deliver(self.late_pods)
            self.queue_key()
            if not self.writes:
                return
            self.write_all()
        raise AssertionError("it never comes to rest")


news = st.sampled_from(
    [("claims",), ("pods",), ("all",), ("all",), ("decide",), ("decide",), ("turn",), ("turn",)]
)
writes = st.one_of(st.just(("write all",)), st.tuples(st.just("write"), st.integers(0, 5)))
entry_types = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.sampled_from(["gpu", "nic"])),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("begin deletion"), st.sampled_from(NAMES)),
    st.tuples(st.just("race"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.integers(0, 5)),
    st.tuples(st.just("submit"), st.lists(st.sampled_from(NAMES), min_size=1, max_size=2)),
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.just(("lead",)),
)
scripts = st.lists(st.one_of(entry_types, news, news, writes), min_size=20, max_size=80)


@given(scripts)
@settings(max_examples=cases(160, 400))
def test_a_released_pod_keeps_the_claims_that_it_was_released_for(
    script: list[tuple[object, ...]],
) -> None:
    world = World()
    for number, (kind, *details) in enumerate(script):
        match kind, details:
            case "create", [name, device]:
                world.create(str(name), str(device))
            case "delete", [name]:
                world.delete(str(name))
            case "begin deletion", [name]:
                world.begin_deletion(str(name))
            case "race", [name]:
                world.race(str(name))
            case "remove", [which]:
                world.remove(int(str(which)))
            case "submit", [names]:
                world.submit(number, names)  # type: ignore[arg-type]
            case "end", [which]:
                world.end(int(str(which)))
            case "write", [which]:
                world.carry_out(int(str(which)))
            case "claims", _:
                world.deliver(world.late_claims)
            case "pods", _:
                world.deliver(world.late_pods)
            case "all", _:
                world.deliver(world.late_claims)
                world.deliver(world.late_pods)
            case "write all", _:
                world.write_all()
            case "lead", _:
                world.lead()
            case "decide", _:
                world.decide()
            case _:
                world.queue_key()
        world.check()
    world.settle()
    world.check()
    assert world.bypassed == 0
    for uid in list(world.pods):
        del world.pods[uid]
        world.late_pods.append(ev.PodGone(world.at, uid))
    world.settle()
    assert [claim for claim in world.server.claims.values() if claim.has_finalizer] == []


def test_a_removal_decided_before_a_release_does_not_undo_its_protection() -> None:
    world = World()
    world.create("c0", "nic")
    world.submit(1, ["c0"])
    world.settle()
    world.end(0)
    world.deliver(world.late_pods)
    world.queue_key()
    assert [type(each) for each in world.writes] == [UnprotectClaim]
    world.submit(2, ["c0"])
    world.deliver(world.late_pods)
    world.queue_key()  # the claim still seems to have its finalizer
    world.queue_key()
    assert isinstance(world.writes[-1], Release)
    world.carry_out(len(world.writes) - 1)
    world.carry_out(0)  # the removal arrives last
    world.delete("c0")
    world.create("c0", "gpu")
    world.check()


def test_a_deletion_that_began_before_the_finalizer_frees_no_name_after_the_release() -> None:
    world = World()
    world.create("c0", "nic")
    world.submit(1, ["c0"])
    world.race("c0")
    world.check()
    world.settle()
    world.check()
    assert world.bypassed == 0
    assert all(pod.release_annotation for pod in world.pods.values())
