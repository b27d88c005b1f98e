"""The one place that decides: events in, effects out.

The live leader, its standbys and the simulator drive this same object. It keeps what it heard,
and a pass over it releases, in fair order, whatever fits. It never asks for the time, does no
I/O, and gives the same effects for the same events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from app.core import events as ev
from app.core.accounts.copies import Copies
from app.core.accounts.memory import Memory
from app.core.accounts.running import Running
from app.core.chain.records import Records
from app.core.effects import Effect, Intend, Notice, Rebuild, Refund, StoreWrite, WakeAt
from app.core.fair.drift import Drift
from app.core.fair.order import likely
from app.core.fair.tenancy import Tenancy
from app.core.fair.usage import Usage
from app.core.model import Answer, Millis, Pod, Pool, Resource, Tenant, Uid
from app.core.places.fragmentation import Sample
from app.core.places.placement import Placement
from app.core.places.pools import Pools
from app.core.pods.claimants import Claimants
from app.core.pods.life import LIVES, Life, Sight, sight
from app.core.pods.misfits import Misfits
from app.core.pods.oversight import Oversight, Right
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.pods.unbound import CAUSE as UNBOUND
from app.core.pods.vain import Vain
from app.core.pods.zombies import Zombies
from app.core.policy import Policy
from app.core.resources import ManagedResources
from app.core.telling.hearsay import Hearsay
from app.core.telling.news import News
from app.core.telling.outlook import Outlook
from app.core.telling.sentences import explain, released
from app.core.telling.views import Bulletin
from app.core.turns.resting import Resting
from app.core.turns.turns import Turns

WINDOW = 256
"""Most releases in flight at once: enough to keep the API server busy, few enough that a change
of order takes effect at once."""

WITNESSES = 1
"""Siblings the live leader compares a release with for the drift: the likeliest to break it."""


class Engine:
    """Holds, orders and releases. See `handle`."""

    def __init__(
        self,
        managed: ManagedResources,
        window: int = WINDOW,
        witnesses: int | None = WITNESSES,
        evicts: bool = True,
        evicts_bypassed: bool = False,
        classes: Mapping[str, Resource] | None = None,
        records: bool = True,
        copied: bool = True,
        reclaims: Collection[Vain] = (),
        sample: Sample | None = None,
    ) -> None:
        """`records`: an audit chain is told; `copied`: so is a store, and the owners of pods;
        `sample`: the pods to pack for, where another engine knows that."""
        self.drift = Drift(witnesses)
        self._tenancy = Tenancy()
        self._pools = Pools(managed, sample)
        self._placement = Placement(self._pools)
        self._usage = Usage(self._tenancy, self._placement)
        self._claimants = Claimants(managed, classes)
        self._roster = Roster(self._tenancy, self._pools, self._usage, self._claimants)
        self.memory = Memory(self._roster, self._tenancy, managed)
        self._running = Running(self._roster, managed)
        self._copies = Copies(self._roster, self._running, silent=not copied)
        self._turns = Turns(
            self._roster, self._pools, self._placement, self.drift, window=window, evicts=evicts
        )
        self._resting = Resting(self._roster)
        self._hearsay = Hearsay(self._roster, self._pools.growth)
        self.outlook = Outlook(
            self._roster,
            self._tenancy,
            self._pools,
            self._placement,
            self._turns.reservations,
            managed,
            self._hearsay,
            self._resting,
            self._running,
        )
        self._oversight = Oversight(self._roster, evicts_bypassed)
        self._misfits = Misfits(self._roster, self._pools.growth, explain)
        self.zombies = Zombies(self._roster, reclaims, self._turns.evictions.goes)
        self._records = Records(
            self._roster, self._tenancy, self._oversight, self._turns.truces, silent=not records
        )
        self._fresh: set[ev.Source] = set()
        self._epoch: int | None = None
        self._store_ready = False
        self._news = News(self._roster, self.outlook, silent=not copied)
        self._effects: list[Effect] = []
        self._woken: Millis | None = None

    @property
    def ready(self) -> bool:
        """Whether every source has been heard whole and is fresh."""
        return self._fresh >= ev.NEEDED

    def handle(self, event: ev.Event) -> tuple[Effect, ...]:
        """Take one event; return what should be done about it, in this order.

        Releases come with `Pass` only, so that what arrived together is ordered together.
        """
        self._effects = []
        self.outlook.stale()
        self._usage.advance(event.at)
        if not isinstance(event, ev.Pass):
            self._note(event)
        else:
            self._records.remind()
            if self.ready:
                self._resting.wake(event.at)
                self._act()
        self._effects += self._records.take()
        return tuple(self._effects) if self._epoch is not None else ()

    def hear(self, bulletin: Bulletin) -> None:
        """Take what the engine that leads says of itself; this one does not lead."""
        self._hearsay.hear(bulletin)
        self.outlook.stale()

    def writes(self) -> Iterator[StoreWrite]:
        """Return everything a store must hold to equal this engine."""
        return self._copies.whole()

    def wants_gone(self, uid: Uid) -> bool:
        """Tell whether a pod is still to be evicted; what it was ordered for may have passed."""
        return self._turns.evictions.wanted(uid)

    def notes(self) -> Iterator[tuple[str, str]]:
        """Return what the audit chain was last told of everything that is there."""
        return self._records.notes()

    def held(self) -> Iterator[Pod]:
        """Return the pods that are behind the gate as far as is known."""
        return (t.pod for t in self._roster.pods.values() if t.life is not Life.USING)

    def highest_stamp(self, *, fences: bool = True) -> int:
        """Return the highest epoch found in release annotations of pods, and in checkpoints.

        Without `fences`: of those alone that were released.
        """
        epochs = (t.stamp[0] for t in self._roster.pods.values() if fences or t.stamp[1] > 0)
        return max(likely(epochs), likely(self.memory.epochs()))

    def _act(self) -> None:
        self._roster.reckon()
        self._roster.settle()
        self.memory.restore()
        if self._epoch is not None and self._oversight.since is not None:
            self._order([*self._oversight.run(self._usage.now), *self._misfits.run()])
            self._roster.settle()
        self._effects += self._copies.changes()
        if self._epoch is not None and self._store_ready:
            releases = self._turns.run(self._epoch)
            self._oversight.order(releases)
            self._records.ordered(releases)
            self._effects += releases
            self._roster.settle()
            self._effects += self._copies.changes()
        self._effects += self._news.tell()
        self._set_alarm()

    def _order(self, effects: list[Effect]) -> None:
        """Ask for these, and keep in mind that they were asked for."""
        effects = self._turns.evictions.ordered(effects)
        self._records.ordered(effects)
        self._effects += effects

    def _set_alarm(self) -> None:
        """Ask to be woken when something is due by time alone, unless that was asked already."""
        due = [self._resting.due(), self._usage.due(), self._turns.due()]
        if self._oversight.since is not None:
            due += (self._oversight.due(), self._misfits.due())
        at = min((each for each in due if each is not None), default=None)
        if at is not None and at != self._woken:
            self._effects.append(WakeAt(at))
        self._woken = at

    def _note(self, event: ev.NewsEvent) -> None:
        match event:
            case ev.ReleaseAnswered(at, uid, answer):
                self._answer(at, uid, answer)
            case ev.ReleaseStuck(_, uid):
                self._turns.in_flight.discard(uid)  # others may take its place
            case ev.EvictionAccepted(_, uid):
                self._records.evicted(uid)
                self._effects += self._turns.evictions.accepted(uid)
            case ev.EvictionRefused(_, uid):
                self._effects += self._turns.evictions.refused(uid)
            case ev.FoundUseless(_, uid, kind, why):
                self._order(self.zombies.find(uid, kind, why))
            case ev.FoundUseful(_, uid, kind):
                self._turns.evictions.withdraw(self.zombies.clear(uid, kind), kind.value)
            case ev.Installed(_, since):
                self._oversight.since = since
            case ev.CheckpointsRead(_, checkpoints):
                for name, checkpoint in checkpoints.items():
                    self.memory.hear(name, checkpoint, live=False)
            case ev.StoreReady() | ev.StoreLost():
                self._store_ready = isinstance(event, ev.StoreReady)
            case ev.LeadershipGained():
                self._lead(event)
            case ev.LeadershipLost():
                self._follow()
            case _:
                self._hear(event)

    def _hear(self, event: ev.ClusterEvent) -> None:
        """Take in what a watch saw."""
        match event:
            case ev.PodObserved(_, pod):
                self._observe(pod)
            case ev.PodGone(_, uid):
                self._pools.drop_bystander(uid)
                self._records.vanished(uid)
                self._forget(uid)
                self._roster.gangs.gone(uid)
            case ev.BystanderObserved(_, bystander):
                self._pools.put_bystander(bystander)
                self._forget(bystander.uid)
            case ev.NodeObserved(_, node):
                self._pools.put_node(node)
            case ev.NodeGone(_, name):
                self._pools.drop_node(name)
            case ev.TenantObserved(_, tenant, _, checkpoint):
                self._roster.put_tenant(tenant)
                if checkpoint is not None:
                    self.memory.hear(tenant.name, checkpoint, live=ev.Source.TENANTS in self._fresh)
                self._records.configured(tenant, event.by)
            case ev.TenantGone(_, name):
                self._roster.drop_tenant(name)
                self.memory.forget(name)
                self._records.dropped(Tenant, name)
            case ev.PoolObserved(_, pool):
                self._pools.put_pool(pool)
                self._records.configured(pool, event.by)
            case ev.PoolGone(_, name):
                self._pools.drop_pool(name)
                self._records.dropped(Pool, name)
            case ev.PolicyObserved(_, policy):
                self._rule(policy)
                self._records.configured(policy, event.by)
            case ev.PolicyGone():
                self._rule(Policy())
                self._records.dropped(Policy)
            case ev.PriorityObserved() | ev.PriorityGone():
                pass  # for the webhook: pods carry their priority as a number
            case ev.ClaimObserved(_, claim):
                self._claimants.put_claim(claim)
            case ev.ClaimGone(_, namespace, name):
                self._claimants.drop_claim((namespace, name))
            case ev.ClassObserved(_, name, stated):
                self._claimants.put_class(name, stated)
            case ev.ClassGone(_, name):
                self._claimants.put_class(name, None)
            case ev.GroupObserved(_, group):
                self._roster.gangs.put(group)
            case ev.GroupGone(_, namespace, name):
                self._roster.gangs.drop(namespace, name)
            case ev.SourceFresh(_, source):
                self._fresh.add(source)
            case ev.SourceStale(_, source):
                self._fresh.discard(source)
            case _:
                assert_never(event)

    def _observe(self, pod: Pod) -> None:
        known = self._roster.pods.get(pod.uid)
        seen = sight(pod)
        if pod.plain is None or seen is Sight.OVER:
            self._pools.drop_bystander(pod.uid)
        life = LIVES[known.life if known else None, seen]
        if life is Life.USING and seen is Sight.GATED:
            return  # a sighting from before the release
        if life is None:
            self._roster.gangs.over(pod)
            self._records.over(pod, live=ev.Source.PODS in self._fresh)
            self._forget(pod.uid)
        elif known is None:
            tracked = self._roster.add(pod, life)
            if life is Life.HELD and self.ready:
                self._news.add(tracked)
            self._oversee(tracked, new=True)
        else:
            self._roster.change(known, pod, life)
            self._oversee(known, new=False)

    def _oversee(self, tracked: Tracked, new: bool) -> None:
        """A pod was seen: if it is past the gate, is that right, and does a node take it?"""
        if tracked.life is not Life.USING:
            self._records.seen(tracked)
            return
        if tracked.pod.terminating:
            self._turns.leave(tracked)
        right = self._oversight.see(tracked, new=new, live=ev.Source.PODS in self._fresh)
        if right is Right.RELEASED:
            self._turns.evictions.withdraw(self._misfits.see(tracked), UNBOUND)
        if right is not None:
            self._records.passed(tracked, right)

    def _forget(self, uid: Uid) -> None:
        known = self._roster.pods.get(uid)
        if known is None:
            return
        self._effects += self._copies.gone(known)
        self._records.gone(known)
        stay, leaf = known.stay, known.leaf
        if leaf is not None and stay is not None and stay.overstayed(self._usage.now):
            self._turns.picker.bar(leaf, self._usage.now)
        self._effects += self._turns.evictions.gone(known)
        self._roster.remove(known)
        self._turns.forget(uid)
        self._oversight.forget(uid)
        self._misfits.forget(uid)
        self.zombies.clear(uid)
        self._resting.forget(uid)

    def _rule(self, policy: Policy) -> None:
        self._roster.put_policy(policy)
        self._oversight.rule(policy.mode, self._usage.now)

    def _answer(self, at: Millis, uid: Uid, answer: Answer) -> None:
        self._turns.in_flight.discard(uid)
        self._records.answered(uid, answer)
        known = self._roster.pods.get(uid)
        if known is None or known.intent is None:
            return
        intent = known.intent
        match answer:
            case Answer.RELEASED:
                pod = replace(known.pod, gates=(), release=intent.stamp, pool=intent.pool)
                self._roster.change(known, pod, Life.USING)
                waited = max(0, at - known.pod.since) // 1000
                awaits = self._usage.awaited(known.stay) is not None
                text = released(intent.pool, waited, awaits)
                self._effects += self._news.of(known, Notice.RELEASED, text)
            case Answer.GONE:
                self._forget(uid)
            case Answer.HELD | Answer.UNSENT:
                if known.life is Life.RELEASING:
                    self._roster.change(known, known.pod, Life.HELD)
                    self._effects.append(Refund(uid))
                    self._oversight.withdraw(uid)
                    if answer is Answer.HELD:
                        self._resting.begin(at, known)
            case _:
                assert_never(answer)
        known.intent = None

    def _lead(self, gained: ev.LeadershipGained) -> None:
        self._epoch = gained.epoch
        self._woken = None
        self._turns.begin()
        self._oversight.begin(gained.epoch)
        self._records.begin(gained.notes, gained.intents)
        self.memory.lead(gained.epoch)
        self._store_ready = False
        for intent in gained.unsettled:
            self._resume(intent)
        self._effects.append(Rebuild(gained.epoch))
        self._effects += self._running.take_up(gained.running, gained.intents)

    def _resume(self, intent: Intend) -> None:
        """A release of an older leader may still happen: it counts as used until it is answered."""
        known = self._roster.pods.get(intent.ref.uid)
        if known is not None and known.life is Life.HELD:
            known.intent, known.entered = intent, intent.begin or None
            self._roster.release(known, None)

    def _follow(self) -> None:
        """Stop deciding. What was in flight shows in the pods themselves, sooner or later."""
        self.memory.follow()
        self._epoch = None
        self._turns.end()
        self._oversight.end()
        self._records.end()
        self.zombies.end()
        for tracked in self._roster.pods.values():
            if tracked.life is Life.RELEASING:
                self._roster.change(tracked, tracked.pod, Life.HELD)
            tracked.intent = None
