"""A pod may get only the claims it was released for; claims that change after the release."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from app.core import events as ev
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import (
    Adopt,
    Bypassed,
    ClaimAddress,
    ClaimDeleted,
    Effect,
    EmitEvent,
    EventReason,
    EvictPod,
    ProtectClaim,
    Release,
    UnprotectClaim,
)
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.reasons import Rule
from app.core.lifecycle.claim_protection import SECURE_MS, SETTLE_MS
from app.core.model import (
    Amounts,
    ClaimRef,
    GrantedClaim,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    ReleaseOutcome,
    Resource,
    Uid,
)
from app.core.podspec.granted_claims import read_grants, write_grants
from app.core.podspec.resource_claims import Alternatives, DeviceAsk, DeviceClass, ResourceClaim
from app.core.policy import Mode, Policy
from app.core.quantities import CPU, PODS, ManagedResources
from app.core.well_known import GATE, RELEASE_ADOPTED
from app.sim.cluster.virtual_cluster import held_pod

GPU = Resource("nvidia.com/gpu")
NODE = NodeName("n")
SINCE = Millis(100_000)
E = TypeVar("E", bound=Effect)


def devices(count: int, name: str = "gpu") -> Alternatives:
    return (DeviceAsk(name, count),)


NIC = devices(1, "nic")


def claim(uid: str, *requests: Alternatives, name: str = "c", **more: object) -> ResourceClaim:
    return ResourceClaim("a", name, requests, uid=Uid(uid), resource_version=f"v-{uid}", **more)  # type: ignore[arg-type]


def pod(*claims: str, **more: object) -> Pod:
    refs = tuple(ClaimRef(each, each) for each in claims or ("c",))
    plain = {CPU: 1000, PODS: 1}
    fields = {
        "demand": plain,
        "container_requests": plain,
        "claims": refs,
        "created_at": SINCE,
        **more,
    }
    return replace(held_pod("p", "a"), **fields)  # type: ignore[arg-type]


class Yard:
    """A leader of one node of 8 devices; `effects` are all its effects."""

    def __init__(
        self,
        *there: Pod | ResourceClaim,
        evicts: bool = False,
        epoch: int = 7,
        notes: dict[str, str] | None = None,
    ) -> None:
        self.engine = Engine(
            ManagedResources([GPU]),
            EngineOptions(resource_by_device_class={"gpu": GPU}, evicts_bypassed=evicts),
        )
        self.now = 200_000
        self.effects: list[Effect] = []
        self.claims: dict[Uid, ResourceClaim] = {}
        room = {GPU: 8, CPU: 64_000, PODS: 100}
        self.hear(ev.NodeObserved(self.at, Node(NODE, {}, room, True)))
        self.hear(ev.ClassObserved(self.at, DeviceClass("nic")))
        for each in there:
            self.see(each)
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(self.at, source))
        self.hear(ev.Installed(self.at, SINCE))
        self.lead(epoch, notes or {})

    @property
    def at(self) -> Millis:
        return Millis(self.now)

    def lead(self, epoch: int, notes: dict[str, str]) -> None:
        self.hear(ev.LeadershipGained(self.at, epoch, audit_markers=notes))
        self.hear(ev.StoreReady(self.at))

    def hear(self, event: ev.NewsEvent) -> None:
        self.effects += self.engine.handle(event)
        self.effects += self.engine.handle(ev.Pass(self.at))

    def see(self, what: Pod | ResourceClaim) -> None:
        if isinstance(what, ResourceClaim):
            self.claims[what.uid] = what
            self.hear(ev.ClaimObserved(self.at, what))
            return
        before = len(self.effects)
        self.hear(ev.PodObserved(self.at, what))
        if what.gates:
            self._secure(self.effects[before:])

    def _secure(self, effects: list[Effect]) -> None:
        """Add the requested finalizers, and wait until the claims are secured."""
        for each in effects:
            if isinstance(each, ProtectClaim):
                self.see(replace(self.claims[each.ref.uid], has_finalizer=True))
        self.wait(SECURE_MS)

    def wait(self, length: int) -> None:
        self.now += length
        self.effects += self.engine.handle(ev.Pass(self.at))

    def release(self, held: Pod) -> Pod:
        """Add a held pod, and let its release succeed as the API server would."""
        self.see(held)
        order = self.all(Release)[-1]
        done = replace(
            held,
            gates=(),
            release_annotation=order.stamp,
            pool=order.intent.pool or None,
            granted_claims=order.claims or None,
        )
        self.hear(ev.ReleaseAnswered(self.at, held.uid, ReleaseOutcome.RELEASED))
        self.see(done)
        return done

    def all(self, kind: type[E]) -> list[E]:
        return [each for each in self.effects if isinstance(each, kind)]

    def recorded(self, entry_type: EntryType) -> list[AuditRecord]:
        return [each for each in self.all(AuditRecord) if each.entry_type is entry_type]

    @property
    def used(self) -> Amounts:
        used = self.engine.queries.view().pools[PoolName("default")].used
        return {r: v for r, v in used.items() if v and r == GPU}


# --- the claims of a release ---


def test_a_release_names_the_claims_that_it_is_for() -> None:
    yard = Yard(claim("u1", NIC), claim("u2", devices(2), name="d"))
    yard.see(pod("c", "d"))
    [order] = yard.all(Release)
    assert order.claims == (
        GrantedClaim("c", Uid("u1"), {}),
        GrantedClaim("d", Uid("u2"), {GPU: 2}),
    )
    assert read_grants(write_grants(order.claims)) == order.claims


def test_in_mode_observe_a_release_names_no_claims_and_protects_none() -> None:
    yard = Yard(claim("u1", NIC))
    yard.hear(ev.PolicyObserved(yard.at, Policy(mode=Mode.OBSERVE)))
    yard.release(pod())
    assert [order.claims for order in yard.all(Release)] == [()]
    assert yard.all(ProtectClaim) == []


@pytest.mark.parametrize(
    "written",
    [
        "",
        "[]",
        "{",
        '"x"',
        '{"c":1}',
        '{"c":{"uid":"u"}}',
        '{"c":{"amounts":{"g":"x"}}}',
        '{"c":{"uid":"u","amounts":{"g":1e999}}}',
        '{"c":{"uid":"u","amounts":{"g":NaN}}}',
        '{"c":{"uid":"u","amounts":{"g":"%s"}}}' % ("9" * 400),
        '{"c":{"uid":"u","amounts":{"g":"%s"}}}' % ("9" * 5000),
        '{"c":{"uid":"u","amounts":{"g":9223372036854775808}}}',
    ],
)
def test_annotation_that_fairgate_would_not_write_is_ignored(written: str) -> None:
    assert not read_grants(written)


def test_a_held_pod_waits_for_a_claim_that_is_being_deleted() -> None:
    yard = Yard(claim("u1", NIC, terminating=True, has_finalizer=True))
    yard.see(pod())
    assert yard.all(Release) == []
    why = yard.engine.queries.explain_wait(pod().uid)
    assert why is not None
    assert why.rule is Rule.CLAIM


def test_a_pod_is_released_after_its_claim_has_had_the_finalizer_for_a_while() -> None:
    yard = Yard(claim("u1", NIC))
    yard.hear(ev.PodObserved(yard.at, pod()))
    assert [each.ref.uid for each in yard.all(ProtectClaim)] == ["u1"]
    yard.wait(SECURE_MS)
    assert yard.all(Release) == []
    why = yard.engine.queries.explain_wait(pod().uid)
    assert why is not None
    assert why.rule is Rule.CLAIM
    assert "reserves its resource claims" in why.text
    assert "create the claim again with kubectl" in why.text
    yard.see(claim("u1", NIC, has_finalizer=True))
    yard.wait(SECURE_MS - 1)
    assert yard.all(Release) == []
    yard.wait(1)
    assert len(yard.all(Release)) == 1


@pytest.mark.parametrize("loss", ["exchanged", "removed", "removal ordered"])
def test_a_claim_that_may_have_lost_its_finalizer_is_secured_again(loss: str) -> None:
    yard = Yard(claim("u1", NIC, has_finalizer=True))
    waiting = pod(gates=(GATE, "other"))
    yard.see(waiting)
    match loss:
        case "exchanged":
            yard.see(claim("u2", NIC, has_finalizer=True))
        case "removed":
            yard.see(claim("u1", NIC))
            yard.see(claim("u1", NIC, has_finalizer=True))
        case _:
            yard.effects.clear()
            yard.hear(ev.PodGone(yard.at, waiting.uid))
            assert len(yard.all(UnprotectClaim)) == 1
    yard.hear(ev.PodObserved(yard.at, pod()))
    yard.wait(SECURE_MS - 1)
    assert yard.all(Release) == []
    yard.wait(1)
    assert len(yard.all(Release)) == 1


# --- exchanged claims ---


def test_another_claim_of_the_name_is_a_bypass_charged_at_once_and_evicted() -> None:
    yard = Yard(claim("u1", NIC))
    released = yard.release(pod())
    assert yard.used == {}
    yard.see(claim("u2", devices(8)))
    [found] = yard.all(Bypassed)
    assert (found.ref.uid, found.claim, found.gained) == (released.uid, "c", {GPU: 8})
    assert yard.used == {GPU: 8}
    [expelled] = yard.all(EvictPod)
    assert expelled.ref.uid == released.uid
    assert "not the one that this pod was released for" in expelled.why
    assert EventReason.REFUSED in [each.reason for each in yard.all(EmitEvent)]
    [record] = yard.recorded(EntryType.BYPASSED)
    assert record.facts["gained"] == {GPU: "8"}
    assert record.facts["claim"] == "c"


def test_running_pod_with_an_exchanged_claim_is_evicted_only_if_enabled() -> None:
    for evicts in (False, True):
        yard = Yard(claim("u1", devices(1)), evicts=evicts)
        released = yard.release(pod())
        yard.see(replace(released, node=NODE, phase=Phase.RUNNING))
        yard.see(claim("u2", devices(8)))
        [found] = yard.all(Bypassed)
        assert (found.node, found.gained) == (NODE, {GPU: 7})
        assert bool(yard.all(EvictPod)) is evicts
        assert yard.used == {GPU: 8}


def test_replacement_of_a_deleted_claim_is_a_bypass_even_if_smaller() -> None:
    yard = Yard(claim("u1", devices(4)))
    yard.release(pod())
    yard.hear(ev.ClaimGone(yard.at, "a", "c"))
    assert yard.all(Bypassed) == []
    yard.see(claim("u2", devices(1)))
    [found] = yard.all(Bypassed)
    assert found.gained == {}
    assert yard.used == {GPU: 4}


def test_a_claim_that_the_status_names_in_place_of_another_is_a_bypass() -> None:
    made = claim("u1", devices(1), name="p-1", owner=pod().uid)
    yard = Yard(made)
    released = yard.release(pod(claims=(ClaimRef("e", "p-1", True),)))
    yard.see(claim("u2", devices(6), name="p-2", owner=pod().uid))
    assert yard.all(Bypassed) == []
    yard.see(replace(released, claims=(ClaimRef("e", "p-2", True),)))
    [found] = yard.all(Bypassed)
    assert (found.claim, found.gained) == ("p-2", {GPU: 6})
    assert yard.used == {GPU: 7}, "it may have the devices of both"


def test_later_leader_detects_an_exchange_from_the_claims_of_the_release() -> None:
    granted = (GrantedClaim("c", Uid("u1"), {GPU: 3}),)
    past = pod(gates=(), release_annotation="6.1", granted_claims=granted)
    yard = Yard(past, claim("u2", devices(2)))
    [found] = yard.all(Bypassed)
    assert (found.claim_uid, found.gained) == ("u2", {})
    assert yard.used == {GPU: 3}, "the larger amount"
    assert len(yard.all(EvictPod)) == 1


def test_each_exchange_is_recorded_once_across_leaders() -> None:
    yard = Yard(claim("u1", NIC))
    released = yard.release(pod())
    yard.see(claim("u2", devices(2)))
    yard.see(claim("u3", devices(3)))
    assert [each.facts["claimUid"] for each in yard.recorded(EntryType.BYPASSED)] == ["u2", "u3"]
    notes = dict(yard.engine.audit_markers())
    later = Yard(released, claim("u3", devices(3)), epoch=8, notes=notes)
    assert later.all(Bypassed) == []
    assert len(later.all(EvictPod)) == 1
    assert later.recorded(EntryType.BYPASSED) == []
    assert later.recorded(EntryType.RELEASED) == []


def test_a_class_that_becomes_managed_is_no_bypass() -> None:
    yard = Yard(claim("u1", NIC))
    yard.release(pod())
    yard.hear(ev.ClassObserved(yard.at, DeviceClass("nic", GPU)))
    assert yard.all(Bypassed) == []
    assert yard.used == {GPU: 1}


def test_pod_without_the_annotation_is_compared_with_its_first_seen_claim() -> None:
    past = pod(gates=(), release_annotation="6.1")
    yard = Yard(past, claim("u1", NIC))
    assert yard.all(Bypassed) == []
    yard.see(claim("u2", devices(2)))
    assert len(yard.all(Bypassed)) == 1


def test_in_mode_observe_no_exchange_is_reported() -> None:
    yard = Yard(claim("u1", NIC))
    yard.hear(ev.PolicyObserved(yard.at, Policy(mode=Mode.OBSERVE)))
    yard.release(pod())
    yard.see(claim("u2", devices(8)))
    assert yard.all(Bypassed) == yard.all(EvictPod) == []
    yard.hear(ev.PolicyObserved(yard.at, Policy()))
    assert yard.all(Bypassed) == []
    assert yard.used == {GPU: 8}


# --- deleted claims ---


def test_claim_deleted_before_its_pod_has_a_node_is_recorded_as_no_bypass() -> None:
    yard = Yard(claim("u1", NIC))
    released = yard.release(pod())
    yard.see(claim("u1", NIC, terminating=True, has_finalizer=True))
    [found] = yard.all(ClaimDeleted)
    assert (found.ref.uid, found.claim) == (released.uid, "c")
    assert yard.all(Bypassed) == yard.all(EvictPod) == []
    [record] = yard.recorded(EntryType.CLAIM_DELETED)
    assert record.facts["claimUid"] == "u1"
    yard.see(replace(released, has_labels=False))
    assert len(yard.all(ClaimDeleted)) == 1
    view = yard.engine.queries.released_view(released.uid)
    assert view is not None
    assert view.missing_claims == ("c",)


@pytest.mark.parametrize("change", [{"node": NODE}, {"terminating": True}])
def test_a_claim_deleted_under_a_pod_that_runs_or_ends_is_no_news(
    change: dict[str, object],
) -> None:
    yard = Yard(claim("u1", NIC))
    released = yard.release(pod())
    yard.see(replace(released, **change))  # type: ignore[arg-type]
    yard.see(claim("u1", NIC, terminating=True, has_finalizer=True))
    assert yard.all(ClaimDeleted) == []


# --- the finalizer ---


def test_a_finalizer_is_removed_when_the_last_pod_that_uses_the_claim_is_gone() -> None:
    yard = Yard(claim("u1", NIC))
    first = yard.release(pod())
    second = yard.release(replace(pod(), uid=Uid("a/q"), name="q"))
    yard.see(claim("u1", NIC, has_finalizer=True))
    yard.hear(ev.PodGone(yard.at, first.uid))
    assert yard.all(UnprotectClaim) == []
    yard.see(replace(second, phase=Phase.FINISHED))
    assert yard.all(UnprotectClaim) == [UnprotectClaim(ClaimAddress(Uid("u1"), "a", "c"), "v-u1")]


def test_a_new_leader_removes_finalizers_that_no_pod_needs_and_adds_those_that_lack() -> None:
    past = pod("d", gates=(), release_annotation=RELEASE_ADOPTED, created_at=Millis(1))
    yard = Yard(claim("u1", NIC, has_finalizer=True), claim("u2", NIC, name="d"), past)
    assert [each.ref.name for each in yard.all(UnprotectClaim)] == ["c"]
    assert [each.ref.name for each in yard.all(ProtectClaim)] == ["d"]
    yard.effects.clear()
    yard.see(claim("u2", NIC, name="d", has_finalizer=True))
    yard.hear(ev.ClaimGone(yard.at, "a", "c"))
    yard.now += 600_000
    yard.hear(ev.SourceFresh(yard.at, ev.WatchedSource.PODS))
    assert yard.all(UnprotectClaim) == yard.all(ProtectClaim) == []


def test_a_finalizer_that_is_not_seen_removed_is_removed_again_at_its_new_version() -> None:
    yard = Yard(claim("u1", NIC, has_finalizer=True))
    yard.see(replace(claim("u1", NIC, has_finalizer=True), resource_version="v9"))
    yard.now += 60_000
    yard.hear(ev.SourceFresh(yard.at, ev.WatchedSource.PODS))
    assert [each.version for each in yard.all(UnprotectClaim)] == ["v-u1", "v9"]


def test_finalizer_stays_while_a_held_pod_uses_a_claim_that_is_not_deleted() -> None:
    yard = Yard(claim("u1", NIC, has_finalizer=True), pod(gates=("fairgate.io/queue", "other")))
    assert yard.all(UnprotectClaim) == []
    yard.see(claim("u1", NIC, has_finalizer=True, terminating=True))
    assert yard.all(UnprotectClaim) == []
    yard.now += SETTLE_MS
    yard.hear(ev.SourceFresh(yard.at, ev.WatchedSource.PODS))
    assert len(yard.all(UnprotectClaim)) == 1


def test_in_mode_observe_every_finalizer_is_removed() -> None:
    yard = Yard(claim("u1", NIC))
    yard.release(pod())
    yard.see(claim("u1", NIC, has_finalizer=True))
    yard.hear(ev.PolicyObserved(yard.at, Policy(mode=Mode.OBSERVE)))
    assert len(yard.all(UnprotectClaim)) == 1
    yard.see(claim("u1", NIC))
    yard.effects.clear()
    yard.hear(ev.PolicyObserved(yard.at, Policy()))
    assert len(yard.all(ProtectClaim)) == 1


def test_an_adoption_records_the_claims_that_the_pod_has() -> None:
    past = pod(gates=(), created_at=Millis(1), node=NODE)
    yard = Yard(claim("u1", devices(2)), past)
    assert yard.all(Adopt)[0].claims == (GrantedClaim("c", Uid("u1"), {GPU: 2}),)


def test_release_of_a_pod_without_claims_protects_no_claim() -> None:
    yard = Yard(claim("u1", NIC))
    yard.release(replace(held_pod("q", "a"), demand={GPU: 1, PODS: 1}))
    assert yard.all(Release)[0].claims == ()
    assert yard.all(ProtectClaim) == yard.all(UnprotectClaim) == []


def test_claims_of_a_failed_release_do_not_apply_to_a_later_release() -> None:
    yard = Yard(claim("u1", NIC))
    yard.see(pod())
    yard.hear(ev.ReleaseAnswered(yard.at, pod().uid, ReleaseOutcome.HELD))
    yard.hear(ev.ClaimGone(yard.at, "a", "c"))
    yard.see(claim("u2", NIC))
    yard.see(pod(gates=(), release_annotation=RELEASE_ADOPTED))  # released by hand
    assert yard.all(Bypassed) == []


def test_follower_stores_nothing_of_deleted_claims() -> None:
    engine = Engine(ManagedResources([GPU]))
    for source in ev.WatchedSource:
        engine.handle(ev.SourceFresh(SINCE, source))
    for number in range(1000):
        engine.handle(ev.ClaimObserved(SINCE, claim("u", NIC, name=f"c{number}")))
        engine.handle(ev.ClaimGone(SINCE, "a", f"c{number}"))
    engine.handle(ev.Pass(SINCE))
    assert engine._claim_charges.drain_changed() == ([], {})


def test_change_of_a_pod_does_not_recheck_other_pods_of_its_claim() -> None:
    yard = Yard(claim("u1", NIC, has_finalizer=True))
    pods = [yard.release(replace(pod(), uid=Uid(f"a/{n}"), name=f"{n}")) for n in range(20)]
    judged: list[Uid] = []
    judge = yard.engine._exchanges._judge
    yard.engine._exchanges._judge = lambda tracked, now: (  # type: ignore[method-assign]
        judged.append(tracked.pod.uid) or judge(tracked, now)  # type: ignore[func-returns-value]
    )
    yard.see(replace(pods[3], node=NODE))
    assert judged == [pods[3].uid]
