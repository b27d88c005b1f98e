"""A pass: pick, release or evict, and pick again, until nothing more can start.

It turns choices into intents and effects; the rules of a pick are in `pick` and `reclaim`.
"""

from __future__ import annotations

from app.core.admission.gate import release_labels
from app.core.asks.shape import Shape
from app.core.effects import Effect, Evict, Intend, LoopRefused, Notice, PodRef, Release, Tell
from app.core.fair.branch import Branch, Leaf
from app.core.fair.decision import Choice, Decision, Level
from app.core.fair.drift import Drift
from app.core.model import LABEL_POOL, Millis, NodeName, Pod, PoolName, Resource, TenantName, Uid
from app.core.places.placement import Placement
from app.core.places.pools import Pools, add_to
from app.core.places.shapes import in_order
from app.core.places.steering import HOSTNAME, NO_WAY, Way, confined_to, steer_of, steered
from app.core.pods.roster import Roster
from app.core.pods.tracked import Gang, Tracked
from app.core.policy import Mode, Reclaim, WithinQueue
from app.core.resources import fits
from app.core.turns.evictions import Evictions
from app.core.turns.pick import Picker
from app.core.turns.reclaim import Reclaimer
from app.core.turns.reservation import Reservation, Reservations
from app.core.turns.truces import PEACE_MS, Truces
from app.core.turns.victims import Clearance

NOWHERE = PoolName("")
"""Where a pod goes that uses no pool."""


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
        self.truces = Truces()
        self._reclaimer = Reclaimer(roster, placement, self.truces)
        self.evictions = Evictions(roster, self.reservations, self._reclaimer, self.truces)
        self._told: dict[tuple[Uid, PoolName, TenantName], Millis] = {}
        self._hopeless: set[tuple[Uid, PoolName]] = set()
        """For whom nobody could be evicted in this pass: not asked again at every pick."""
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
        self.evictions.end()
        self._told.clear()

    def run(self, epoch: int) -> list[Effect]:
        """Release whatever fits, the next in fair order first, until nothing does."""
        effects = self._let_go(epoch)
        self._reclaimer.again_at = None
        self._hopeless.clear()
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
        self.evictions.ordered(effects)
        self.evictions.review()
        usage = self._roster.usage
        after = usage.policy.reserve_after
        self.reservations.harden(usage.now, after, self.picker.uses_least)
        return effects

    def due(self) -> Millis | None:
        """Return when a pass may find more to do by time alone."""
        due = (self._reclaimer.again_at, self.evictions.due())
        return min((at for at in due if at is not None), default=None)

    def leave(self, tracked: Tracked) -> None:
        """A pod that uses something is on its way out."""
        self._reclaimer.leave(tracked)

    def forget(self, uid: Uid) -> None:
        """A pod is gone: it waits no more, and what it was evicted for need not wait for it."""
        self.reservations.drop(uid)
        self._reclaimer.forget(uid)

    def _let_go(self, epoch: int) -> list[Effect]:
        """Release the pods that ask for nothing managed; they wait for nobody."""
        idle = [self._roster.idle[uid] for uid in sorted(self._roster.idle)]
        effects: list[Effect] = []
        for tracked in idle[: max(0, self._window - len(self.in_flight))]:
            effects.append(self._release_one(tracked, NOWHERE, None, epoch, None))
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
        # And who has a node before who waits for one, and might be expected there meanwhile.
        pairs = sorted(
            zip(pods, choice.plan.nodes, strict=True),
            key=lambda each: (_claim_order(each[0]), each[1] is None),
        )
        kept = self.reservations.kept(choice.pool, uid)
        off = self._hosts(kept)
        effects: list[Effect] = []
        for pod, node in pairs:
            avoided = off if node is not None else self._open_to(pod, choice.pool, kept)
            way = self._way(pod, choice.shape, node, avoided)
            one = by_uid[pod.uid]
            effects.append(
                self._release_one(one, choice.pool, node, epoch, decision, len(pairs), way)
            )
        tree.serve(choice.leaf, (epoch, self._sequence))
        self.reservations.drop(uid)
        return effects

    def _release_one(
        self,
        tracked: Tracked,
        pool: PoolName,
        node: NodeName | None,
        epoch: int,
        decision: Decision | None,
        together: int = 1,
        way: Way = NO_WAY,
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
        selector = {**self._pools.pools[pool].selector, **way.domain} if pool else {}
        selector = {k: v for k, v in selector.items() if k not in pod.selector}
        self._roster.release(tracked, node, steered(pod, selector, way.steer))
        self.in_flight.add(pod.uid)
        tolerations = self._pools.pools[pool].tolerations if pool else ()
        labels = release_labels(leaf.tenant, pod.user, pool)
        return Release(
            intent=tracked.intent,
            tested=pod.release,
            selector=selector,
            labels=labels if pool else {k: v for k, v in labels.items() if k != LABEL_POOL},
            has_selector=bool(pod.selector),
            has_labels=pod.has_labels,
            has_annotations=pod.has_annotations,
            since=pod.since,
            node=node,
            decision=decision,
            tolerations=tuple(each for each in tolerations if each not in pod.tolerations),
            has_tolerations=bool(pod.tolerations),
            steer=way.steer,
            together=together,
        )

    def _open_to(self, pod: Pod, pool: PoolName, kept: list[NodeName]) -> list[str]:
        """Return the hosts among those where room is kept that would take a pod now.

        It waits for a node to come, which the scheduler does not know. Others are not named, as
        some autoscalers add no node for a pod that names any.
        """
        free = self._placement.free_on
        return self._hosts([name for name in kept if fits(pod.demand, free(pool, name))])

    def _way(self, pod: Pod, shape: Shape, node: NodeName | None, off: list[str]) -> Way:
        """Return how the scheduler comes to choose the node, or the domain, chosen here."""
        labels = self._pools.labels_of(node) if node is not None else {}
        return Way(steer_of(shape, pod, node, labels, off), confined_to(shape, labels))

    def _hosts(self, nodes: list[NodeName]) -> list[str]:
        hosts = [self._pools.labels_of(name).get(HOSTNAME, "") for name in nodes]
        return [host for host in hosts if host]

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
        if not self._evicts or policy.mode is Mode.OBSERVE:
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
        self._reclaimer.forbidden.clear()
        for pool in shape.pools:
            if pool not in self.reservations.strict and (turn.uid, pool) not in self._hopeless:
                clearance = self._reclaimer.judge(leaf, turn, shape, pool)
                self._roster.usage.tree.settle()
                if clearance is not None:
                    return self._evict(leaf, pool, clearance)
                self._hopeless.add((turn.uid, pool))
        return self._report(workload.starting[0].ref, leaf)

    def _report(self, waiting: PodRef, leaf: Leaf) -> list[Effect]:
        """Tell, once, from whom nothing is taken for a workload because that would be a loop."""
        now, effects = self._roster.usage.now, list[Effect]()
        self._told = {key: until for key, until in self._told.items() if until > now}
        for key, until in self._reclaimer.forbidden.items():
            _, pool, rival = key
            if key not in self._told:
                self._told[key] = until
                effects.append(LoopRefused(waiting, leaf.tenant, rival, pool, until))
                minutes = -(-(until - now) // 60_000)
                effects.append(
                    Tell(
                        waiting,
                        Notice.WAITING,
                        f"no work of tenant {rival} is evicted for it in pool {pool} within the "
                        f"next {minutes} min: not long ago work of tenant {leaf.tenant} was "
                        "evicted there for that tenant, and nothing goes back and forth",
                    )
                )
        return effects

    def _evict(self, leaf: Leaf, pool: PoolName, clearance: Clearance) -> list[Effect]:
        assert leaf.head is not None
        turn, shape, _ = leaf.head
        workload = self._roster.workload(turn.uid)
        assert workload is not None
        beneficiary = workload.starting[0].ref
        judged = zip(clearance.victims, clearance.compared, strict=True)
        victims = [(t, v.cause, compared) for v, compared in judged for t in v.pods]
        self.reservations.strict[pool] = Reservation(
            turn,
            leaf,
            shape,
            pool,
            dict(clearance.rooms),
            self._placement.laid_out,
            strict=True,
            victims={t.pod.uid for t, _, _ in victims} | clearance.awaited,
            since=self._roster.usage.now,
            taken_from=frozenset(v.leaf.tenant for v in clearance.victims),
        )
        effects: list[Effect] = []
        for tracked, cause, compared in victims:
            tracked.evicted = f"makes room for work of {leaf.tenant}: {cause.explanation}"
            assert tracked.leaf is not None
            whose = (*tracked.leaf.account, beneficiary, leaf.tenant)
            effects.append(Evict(tracked.ref, *whose, cause, pool, compared, len(victims)))
        return effects

    def _give_up(self) -> None:
        """Drop reservations whose victims are gone, but whose room somebody else has."""
        for pool, reservation in list(self.reservations.strict.items()):
            if reservation.completes:
                continue
            account, shape = reservation.leaf.account, reservation.shape
            if not reservation.victims and not self._placement.plan_for(account, shape, pool):
                del self.reservations.strict[pool]


def _claim_order(pod: Pod) -> tuple[bool, Uid]:
    """Return the order in which the pods of a workload are released, as far as claims matter."""
    if pod.plain is None:
        return (False, Uid(""))
    pays = sum(pod.demand.values()) > sum(pod.plain.values())
    return (not pays, pod.uid)
