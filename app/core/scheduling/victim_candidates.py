"""Victim candidates: the released workloads that could be evicted, in their order.

The devices of a shared claim are free only if all its users have ended. So pods that share claims
are one victim, together with their gangs. If any such pod is not preemptible, the claim stays in
use. Then the others are victims by themselves. A pod that only has charged claims is no victim,
because its eviction would not free them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace

from app.core.effects import ReclaimCause
from app.core.fairshare.tree_node import UserNode
from app.core.lifecycle.claim_users import ClaimKey
from app.core.lifecycle.lost_work import device_time_lost_by
from app.core.lifecycle.pod_record import Gang, GangKey, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, PoolName, Uid
from app.core.scheduling.reclaim_trial import SearchTotals
from app.core.scheduling.victims import Victim

MAX_TERMINATION_MS = 600_000
"""Time for which a terminating pod is expected to end. Some pods never end."""

SOON_MS = 60_000
"""Time for which a reclaim prefers to wait for a terminating pod, without an eviction."""


class VictimCandidates:
    """Lists the released workloads of a user that could be evicted.

    It knows which pods are terminating, and which evictions were refused before.
    """

    def __init__(self, registry: PodRegistry, totals: SearchTotals) -> None:
        self._registry = registry
        self._totals = totals
        self._terminating: dict[Uid, tuple[PodRecord, Millis]] = {}
        self._excluded_until: dict[str, Millis] = {}
        self._refusals: Counter[str] = Counter()

    def exclude_until(self, uid: str, until: Millis) -> None:
        """Exclude a pod from reclaims until this time, because its eviction was refused.

        After that time, a pod that has a disruption budget or was refused twice becomes a victim
        only if no other pod can. A notice may last longer than the exclusion, so the same pod would
        be chosen again and again.
        """
        self._excluded_until[uid] = until
        self._refusals[uid] += 1

    def apply_policy_change(self) -> None:
        """Clear these exclusions, because the Policy changed."""
        self._excluded_until.clear()
        self._refusals.clear()

    def record_terminating(self, tracked: PodRecord) -> None:
        """Record that a pod with capacity is terminating."""
        self._terminating.setdefault(tracked.pod.uid, (tracked, self._registry.usage.now))

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod."""
        self._terminating.pop(uid, None)
        self._excluded_until.pop(uid, None)
        self._refusals.pop(uid, None)

    def terminating_pods(self, pool: PoolName) -> list[PodRecord]:
        """Return the terminating pods of a pool that will free their capacity in time."""
        return [
            t
            for t, _ in self._terminating.values()
            if t.allocation is not None
            and t.allocation.pool == pool
            and self._ends_in_time(t)
            and not self._leaves_claim_in_use(t)
        ]

    def ends_soon(self, tracked: PodRecord) -> bool:
        """Return whether a terminating pod is expected to end within `SOON_MS`.

        A tenant could otherwise keep its other pods by one pod that ends slowly after the other.
        """
        now = self._registry.usage.now
        since = self._terminating.get(tracked.pod.uid, (tracked, now))[1]
        end = now if tracked.pod.grace_ends is None else tracked.pod.grace_ends
        return end - now <= SOON_MS and now - since < SOON_MS

    def _is_slow_to_terminate(self, tracked: PodRecord, now: Millis) -> bool:
        """Return whether a terminating pod is not expected to end in time.

        Its grace period is too long, which its owner may choose, or it has been terminating too
        long. A grace period beyond 292 years overflows in the API server, to an end in the past.
        """
        since = self._terminating.get(tracked.pod.uid, (tracked, now))[1]
        end = now if tracked.pod.grace_ends is None else tracked.pod.grace_ends
        return abs(end - now) > MAX_TERMINATION_MS or now - since >= MAX_TERMINATION_MS

    def needs_eviction(self, tracked: PodRecord) -> bool:
        """Return whether the capacity of a pod is freed only by an eviction.

        A terminating pod may leave the claim that it is charged for to other pods.
        """
        return not self._ends_in_time(tracked) or self._leaves_claim_in_use(tracked)

    def _ends_in_time(self, tracked: PodRecord) -> bool:
        """Return whether a pod is terminating, and expected to end in time."""
        now = self._registry.usage.now
        return tracked.pod.terminating and not self._is_slow_to_terminate(tracked, now)

    def _leaves_claim_in_use(self, tracked: PodRecord) -> bool:
        """Return whether a pod is charged for a claim that others will still use after its end."""
        registry = self._registry
        return any(
            registry.is_charged_for(tracked, key)
            and not all(map(self._ends_in_time, registry.users_of_claim(key)))
            for key in registry.shared_claims_of(tracked)
        )

    def victims_of_user(self, leaf: UserNode, pool: PoolName, cause: ReclaimCause) -> list[Victim]:
        """Return the released workloads of a user in a pool that could be evicted, in order."""
        found: list[Victim] = []
        gangs: dict[GangKey, Gang] = {}
        sharing: list[PodRecord] = []
        charged = self._registry.charged_by_user.get(leaf, {})
        self._totals.steps += len(charged)
        for tracked in charged.values():
            if (
                tracked.allocation is None
                or tracked.allocation.pool != pool
                or not self.needs_eviction(tracked)
            ):
                continue
            if tracked.gang is not None:
                gangs[tracked.gang.key] = tracked.gang
            elif self._registry.shared_claims_of(tracked):
                sharing.append(tracked)
            else:
                found.append(self._make_victim(leaf, (tracked,), cause))
        for gang in gangs.values():
            sharer = next(filter(self._registry.shared_claims_of, gang.pods.values()), None)
            if sharer is not None:
                sharing.append(sharer)
            else:
                found += self._victims_of_gang(gang, leaf, cause)
        if sharing:
            found += self._sharing_victims(sharing, leaf, pool, cause)
        return sorted(filter(self._is_evictable, found), key=self.eviction_order)

    def _sharing_victims(
        self, sharing: list[PodRecord], leaf: UserNode, pool: PoolName, cause: ReclaimCause
    ) -> Iterator[Victim]:
        """Yield a victim for each set of pods that share claims, found from these pods.

        The claims of a pod that stays are not freed, so they do not connect the others. A set with
        pods of several users is a victim of only one user. Reclaims for a priority take no such
        set, because it may cost no other user.
        """
        done: set[Uid] = set()
        for first in sharing:
            if first.pod.uid in done:
                continue
            pods = self._connected_pods(first)
            done.update(t.pod.uid for t in pods)
            self._totals.steps += len(pods)
            left = [t for t in pods if self.needs_eviction(t)]
            staying = [t for t in left if not _may_be_taken(t)]
            kept = {key for t in staying for key in self._registry.shared_claims_of(t)}
            for taken in self._sets_beside(left, kept) if staying else [tuple(left)]:
                here = (t.leaf for t in taken if t.allocation and t.allocation.pool == pool)
                if next(here, None) is not leaf:
                    continue
                if cause is ReclaimCause.PRIORITY and any(t.leaf is not leaf for t in taken):
                    continue
                gang = taken[0].gang
                broken = gang is not None and all(t.gang is gang for t in taken)
                broken = broken and gang is not None and self._is_broken(gang)
                yield self._make_victim(leaf, taken, cause, broken)

    def _sets_beside(
        self, left: list[PodRecord], kept: set[ClaimKey]
    ) -> Iterator[tuple[PodRecord, ...]]:
        """Yield the sets of pods that can be evicted and free something besides kept claims."""
        freed = {t.pod.uid: t for t in left if _may_be_taken(t) and self._frees_something(t, kept)}
        while freed:
            connected = self._connected_pods(next(iter(freed.values())), kept, freed)
            self._totals.steps += len(connected)
            for tracked in connected:
                del freed[tracked.pod.uid]
            yield tuple(connected)

    def _frees_something(self, tracked: PodRecord, kept: set[ClaimKey]) -> bool:
        """Return whether the end of a pod frees devices although these claims stay."""
        registry = self._registry
        claims = registry.shared_claims_of(tracked)
        pays = any(key in kept and registry.is_charged_for(tracked, key) for key in claims)
        return not pays or registry.has_own_devices(tracked) or not kept.issuperset(claims)

    def _connected_pods(
        self,
        first: PodRecord,
        kept: Container[ClaimKey] = (),
        among: Container[Uid] | None = None,
    ) -> list[PodRecord]:
        """Return a pod with all that share claims or a gang with it, also indirectly, by uid.

        Claims in `kept` do not connect pods. `among`: the only pods that count.
        """
        found, queue = {first.pod.uid: first}, [first]
        keys: set[ClaimKey] = set()
        gangs: set[GangKey] = set()
        while queue:
            tracked, near = queue.pop(), list[PodRecord]()
            for key in self._registry.shared_claims_of(tracked):
                if key not in keys and key not in kept:
                    keys.add(key)
                    near += self._registry.users_of_claim(key)
            if tracked.gang is not None and tracked.gang.key not in gangs:
                gangs.add(tracked.gang.key)
                near += [t for t in tracked.gang.pods.values() if t.allocation is not None]
            fresh = [
                t for t in near if t.pod.uid not in found and (among is None or t.pod.uid in among)
            ]
            found.update((t.pod.uid, t) for t in fresh)
            queue += fresh
        return [found[uid] for uid in sorted(found)]

    def eviction_order(self, victim: Victim) -> tuple[bool, tuple[object, ...]]:
        """Return the sort key among the victims of a tenant."""
        return self.was_refused(victim), victim.eviction_order()

    def was_refused(self, victim: Victim) -> bool:
        """Return whether an eviction was refused before, and is likely to be refused again.

        A first refusal of a pod without a budget may be due to a busy API server. A budget that the
        Policy overrides does not protect a pod at the cost of others.
        """
        if not self._refusals:
            return False
        is_overridden = (
            victim.cause is ReclaimCause.GUARANTEE and self._registry.usage.policy.overrides_budgets
        )
        for tracked in victim.pods:
            count = self._refusals.get(tracked.pod.uid)
            if count is None:
                continue
            if self._registry.budgets.budgets_covering(tracked.pod):
                if not is_overridden:
                    return True
            elif count > 1:
                return True
        return False

    def _victims_of_gang(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Iterator[Victim]:
        """Yield the further pods of a gang, and the whole gang if that is more than these."""
        further = list(self._surplus_victims(gang, leaf, cause))
        whole = self._gang_victim(gang, leaf, cause)
        yield from further
        if not {t.pod.uid for t in whole.pods} <= {each.pods[0].pod.uid for each in further}:
            yield whole

    def _gang_victim(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Victim:
        """Return all preemptible pods of a gang that stay, perhaps none.

        It is broken if fewer pods stay than it needs. A pod that is not preemptible protects only
        itself: the release made those that were released with it not preemptible either, and others
        joined the gang later, perhaps with borrowed capacity.
        """
        pods = [t for t in gang.members if t.allocation is not None]
        left = [t for t in pods if self.needs_eviction(t)]
        preemptible = tuple(t for t in left if t.pod.preemptible)
        return self._make_victim(leaf, preemptible, cause, self._is_broken(gang))

    def _is_broken(self, gang: Gang) -> bool:
        """Return whether fewer pods of a gang stay than it needs."""
        pods = [t for t in gang.members if t.allocation is not None]
        left = [t for t in pods if self.needs_eviction(t)]
        if gang.is_elastic and gang.group_tree is not None:
            uids = {t.pod.uid for t in left}
            return len(left) < len(pods) and not self._registry.gangs.readiness.completes(
                gang, uids
            )
        needed = min(len(pods), gang.min_count) if gang.is_elastic else len(pods)
        return len(left) < needed

    def _surplus_victims(self, gang: Gang, leaf: UserNode, cause: ReclaimCause) -> Iterator[Victim]:
        """Yield the pods that an elastic gang can do without: those released last."""
        if not gang.is_elastic:
            return
        left = [t for t in gang.members if t.allocation is not None and self.needs_eviction(t)]
        left.sort(key=lambda t: (t.release_id, t.pod.uid))
        for tracked in self._registry.gangs.pods_beyond_minimum(gang, left):
            yield replace(self._make_victim(leaf, (tracked,), cause), is_extra_pod=True)

    def without_taken(self, victim: Victim, taken_before: list[Victim]) -> Victim:
        """Return the rest of an elastic gang, if some of its further pods are taken already.

        It has no pods if all are taken.
        """
        if victim.is_extra_pod or victim.gang is None:
            return victim
        taken = {t.pod.uid for each in taken_before if each.is_extra_pod for t in each.pods}
        left = tuple(t for t in victim.pods if t.pod.uid not in taken)
        if len(left) == len(victim.pods):
            return victim
        return self._make_victim(victim.leaf, left, victim.cause, victim.is_broken)

    def _make_victim(
        self, leaf: UserNode, pods: tuple[PodRecord, ...], cause: ReclaimCause, broken: bool = False
    ) -> Victim:
        lost = sum(device_time_lost_by(tracked, self._registry.usage.now) for tracked in pods)
        return Victim(leaf, pods, cause, broken, lost)

    def _is_evictable(self, victim: Victim) -> bool:
        """Return whether a victim may be evicted now.

        The least run time of a gang begins with its oldest pod. Otherwise a gang that gets a new
        pod again and again could never be evicted.
        """
        now, least = self._registry.usage.now, self._registry.usage.policy.min_runtime
        for tracked in victim.pods:
            if (
                not tracked.pod.preemptible
                or tracked.eviction_reason
                or tracked.state is not PodState.USING
            ):
                return False
        begun = min(tracked.released_at or 0 for tracked in victim.pods)
        excluded = max(self._excluded_until.get(t.pod.uid, 0) for t in victim.pods)
        ready = max(begun + least, excluded)
        if ready > now:
            self._totals.retry_by(Millis(ready))
            return False
        return True


def _may_be_taken(tracked: PodRecord) -> bool:
    """Return whether a reclaim may take a pod that shares claims."""
    is_charged = tracked.allocation is not None and tracked.leaf is not None
    return tracked.pod.preemptible and is_charged
