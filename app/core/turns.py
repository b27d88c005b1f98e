"""A pass: pick, release or evict, and pick again, until nothing more can start.

It turns choices into intents and effects; the rules of a pick are in `pick` and `reclaim`.
"""

from __future__ import annotations

from dataclasses import replace

from app.core.branch import Branch, Leaf
from app.core.decision import Choice, Decision, Level
from app.core.drift import Drift
from app.core.effects import Effect, Evict, Intend, Release
from app.core.gate import release_labels
from app.core.model import LABEL_POOL, Millis, NodeName, Pod, PoolName, Resource, Uid
from app.core.pick import Picker
from app.core.placement import Placement
from app.core.policy import Reclaim, WithinQueue
from app.core.pools import Pools, add_to
from app.core.reclaim import Reclaimer, Verdict
from app.core.reservation import Reservation, Reservations
from app.core.roster import Roster
from app.core.shapes import in_order
from app.core.tracked import Gang, Tracked

NOWHERE = PoolName("")
"""Where a pod goes that uses no pool."""

PEACE_MS = 3_600_000
"""So long nobody wins a place back from whom it was taken for."""

SPARED_MS = 60_000
"""A pod whose eviction was refused is left alone for so long."""


class Turns:
    """Lets work start, in fair order."""

    def __init__(
        self,
        roster: Roster,
        pools: Pools,
        placement: Placement,
        drift: Drift,
        *,
        window: int,
        evicts: bool,
    ) -> None:
        self.reservations = Reservations(placement)
        self.picker = Picker(roster, placement, self.reservations)
        self.in_flight: set[Uid] = set()
        self._reclaimer = Reclaimer(roster, placement)
        self._roster = roster
        self._pools = pools
        self._placement = placement
        self._drift = drift
        self._window = window
        self._evicts = evicts
        self._sequence = 0

    def begin(self) -> None:
        """A term begins: releases are numbered anew."""
        self._sequence = 0

    def end(self) -> None:
        """A term is over: what was in flight, or asked for, may or may not have happened."""
        self.in_flight.clear()
        self.reservations.strict.clear()

    def run(self, epoch: int) -> list[Effect]:
        """Release whatever fits, the next in fair order first, until nothing does."""
        effects = self._let_go(epoch)
        self._reclaimer.again_at = None
        while len(self.in_flight) < self._window:
            leaf = self.picker.next()
            choice = self._rest_of_a_gang()
            if choice is None and leaf is not None:
                choice = self.picker.start(leaf)
            backfilled = choice is None
            if choice is None:
                for waiting in self.picker.waiting():
                    effects += self._reclaim(waiting)
                backfill = self._roster.usage.policy.backfill
                choice = self.picker.backfill() if backfill else self.picker.claimed()
            if choice is None:
                break
            effects += self._release(choice, backfilled, epoch)
            self._roster.reckon()
        self._give_up()
        usage = self._roster.usage
        after = usage.policy.reserve_after
        self.reservations.harden(usage.now, after, self.picker.uses_least)
        return effects

    def wake_at(self) -> Millis | None:
        """Return when a pass may find more to do by time alone."""
        return self._reclaimer.again_at

    def forget(self, uid: Uid) -> None:
        """A pod is gone: it waits no more, and what it was evicted for need not wait for it."""
        self.reservations.drop(uid)
        reservation = self.reservations.evicting(uid)
        if reservation is not None:
            reservation.victims.discard(uid)

    def spare(self, tracked: Tracked) -> None:
        """A pod could not be evicted: what was to start in its place waits on."""
        tracked.evicted = ""
        uid = tracked.pod.uid
        self._reclaimer.spare(uid, Millis(self._roster.usage.now + SPARED_MS))
        reservation = self.reservations.evicting(uid)
        if reservation is not None:
            del self.reservations.strict[reservation.pool]

    def _let_go(self, epoch: int) -> list[Effect]:
        """Release the pods that ask for nothing managed; they wait for nobody."""
        idle = [self._roster.idle[uid] for uid in sorted(self._roster.idle)]
        effects: list[Effect] = []
        for tracked in idle[: max(0, self._window - len(self.in_flight))]:
            effects.append(self._open(tracked, NOWHERE, None, epoch, None))
            self.reservations.drop(tracked.pod.uid)
        return effects

    def _rest_of_a_gang(self) -> Choice | None:
        """Return what completes a gang, before anything else: what runs of it is of no use yet.

        Room is kept free, from everybody, for what does not fit; if it ever can.
        """
        for gang in self._roster.half_gangs():
            assert gang.leaf is not None
            assert gang.turn is not None
            assert gang.shape is not None
            choice = self.picker.fit(gang.leaf, gang.turn, gang.shape)
            if choice is not None:
                return choice
            allowed = self.picker.allowed(gang.leaf, gang.shape)
            mates: dict[NodeName, dict[Resource, int]] = {}
            for mate in gang.members:
                if mate.stay is not None and mate.stay.node is not None:
                    add_to(mates.setdefault(mate.stay.node, {}), mate.pod.demand, 1)
            self.reservations.complete(gang.turn, gang.leaf, gang.shape, allowed, mates)
        return None

    def _release(self, choice: Choice, backfilled: bool, epoch: int) -> list[Effect]:
        tree, uid = self._roster.usage.tree, choice.turn.uid
        workload = self._roster.workload(uid)
        assert workload is not None
        half = isinstance(workload, Gang) and workload.half
        if not half:
            self._drift.measure(tree, choice, self.picker.could_start)
        decision = self._decide(choice, backfilled, half)
        waiting = list(workload.starting)
        paid = self.reservations.payment(uid)
        if paid is not None:
            for tracked in waiting:
                tracked.spared = (paid.taken_from, Millis(self._roster.usage.now + PEACE_MS))
        by_uid = {t.pod.uid: t for t in waiting}
        pods = in_order([t.pod for t in waiting], choice.shape)
        # Who pays for a claim goes before who shares it, so that it stays so.
        pairs = sorted(zip(pods, choice.plan.nodes, strict=True), key=lambda each: _shares(each[0]))
        effects: list[Effect] = []
        for pod, node in pairs:
            one = self._open(by_uid[pod.uid], choice.pool, node, epoch, decision)
            effects.append(replace(one, together=len(pairs)))
        tree.serve(choice.leaf, (epoch, self._sequence))
        self.reservations.drop(uid)
        return effects

    def _open(
        self,
        tracked: Tracked,
        pool: PoolName,
        node: NodeName | None,
        epoch: int,
        decision: Decision | None,
    ) -> Release:
        """Begin the release of one pod. Without a pool it goes anywhere, and uses nothing."""
        self._sequence += 1
        pod, leaf = tracked.pod, tracked.leaf
        assert leaf is not None
        demand = pod.demand if pool else {}
        tracked.intent = Intend(
            tracked.ref,
            leaf.tenant,
            pod.user,
            pool,
            demand,
            epoch,
            self._sequence,
            self._roster.usage.now,
        )
        self._roster.release(tracked, node)
        self.in_flight.add(pod.uid)
        selector = self._pools.pools[pool].selector if pool else {}
        labels = release_labels(leaf.tenant, pod.user, pool)
        return Release(
            intent=tracked.intent,
            tested=pod.release,
            selector={k: v for k, v in selector.items() if k not in pod.selector},
            labels=labels if pool else {k: v for k, v in labels.items() if k != LABEL_POOL},
            has_selector=bool(pod.selector),
            has_labels=pod.has_labels,
            has_annotations=pod.has_annotations,
            since=pod.since,
            node=node,
            decision=decision,
        )

    def _decide(self, choice: Choice, backfilled: bool, half: bool) -> Decision:
        """Keep what was compared, before the release changes it."""
        levels = []
        branch: Branch = choice.leaf
        while branch.parent is not None:
            rival = self._roster.usage.tree.rival(branch)
            levels.append(
                Level(
                    str(branch.name),
                    branch.key,
                    str(rival.name) if rival else None,
                    rival.key if rival else None,
                )
            )
            branch = branch.parent
        usage, leaf = self._roster.usage, choice.leaf
        whose = (usage.now, *leaf.account, choice.pool)
        return Decision(*whose, backfilled, tuple(reversed(levels)), half)

    def _reclaim(self, leaf: Leaf) -> list[Effect]:
        policy = self._roster.usage.policy
        if not self._evicts:
            return []
        if policy.reclaim is Reclaim.OFF and policy.within_queue is WithinQueue.NEVER:
            return []
        assert leaf.head is not None
        turn, shape, _ = leaf.head
        workload = self._roster.workload(turn.uid)
        if workload is None or self.reservations.paid_for(turn.uid):
            return []
        if any(t.refusals for t in workload.starting):
            return []  # the API server refused it before; nobody is evicted for it in vain
        for pool in shape.pools:
            if pool not in self.reservations.strict:
                verdict = self._reclaimer.judge(leaf, turn, shape, pool)
                self._roster.usage.tree.settle()
                if verdict is not None:
                    return self._evict(leaf, pool, verdict)
        return []

    def _evict(self, leaf: Leaf, pool: PoolName, verdict: Verdict) -> list[Effect]:
        assert leaf.head is not None
        turn, shape, _ = leaf.head
        workload = self._roster.workload(turn.uid)
        assert workload is not None
        beneficiary = workload.starting[0].ref
        judged = zip(verdict.victims, verdict.compared, strict=True)
        victims = [(t, v.cause, compared) for v, compared in judged for t in v.pods]
        self.reservations.strict[pool] = Reservation(
            turn,
            leaf,
            shape,
            pool,
            dict(verdict.rooms),
            self._placement.laid_out,
            strict=True,
            victims={t.pod.uid for t, _, _ in victims},
            taken_from=frozenset(v.leaf.tenant for v in verdict.victims),
        )
        effects: list[Effect] = []
        for tracked, cause, compared in victims:
            tracked.evicted = f"makes room for work of {leaf.tenant}: {cause.explanation}"
            assert tracked.leaf is not None
            effects.append(
                Evict(tracked.ref, *tracked.leaf.account, beneficiary, leaf.tenant, cause, compared)
            )
        return effects

    def _give_up(self) -> None:
        """Drop reservations whose victims are gone, but whose room somebody else has."""
        for pool, reservation in list(self.reservations.strict.items()):
            if reservation.completes:
                continue
            if not reservation.victims and not self._placement.plan(reservation.shape, pool):
                del self.reservations.strict[pool]


def _shares(pod: Pod) -> tuple[bool, Uid]:
    """Return the order in which the pods of a workload are released, as far as claims matter."""
    if pod.plain is None:
        return (False, Uid(""))
    pays = sum(pod.demand.values()) > sum(pod.plain.values())
    return (not pays, pod.uid)
