"""Charges each ResourceClaim in use to exactly one pod, even if several pods share the claim.

A claim in use is charged to the pod with the earliest release among its users. If no pod uses the
claim, each waiting workload must expect the charge: a single pod, or one pod of a gang.

An allocated claim counts as its devices while all its users are bound. If an unbound pod is left
alone with it, kube-scheduler may allocate it again, and then it may get its largest alternative.

An allocated claim without users is a leftover: `claim_holds` charges it until a pod uses it.
`claim_joins` tells which pods may use a claim that is charged already. `lost_allocations` has the
devices of claims that lost their allocation while bound pods used them.

If a claim is replaced by another one with its name while an ungated pod uses it, the larger amount
of each resource is charged. `claim_exchanges` handles the other consequences of the replacement.

A claim that many waiting pods share may change all the time. The first change counts at once. After
a second one within a pause, none of these pods can be released until the pause ends.

The module has more than 500 lines because every rule of a charge reads the same users of a claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sortedcontainers import SortedSet

from app.core.errors import InvalidInput
from app.core.lifecycle.claim_joins import ClaimJoins
from app.core.lifecycle.claim_users import ChargedPod, ClaimKey, ClaimUse, ClaimUsers, PodClaims
from app.core.lifecycle.lost_allocations import LostAllocations
from app.core.lifecycle.update_pauses import FEW_PODS, UpdatePauses
from app.core.model import (
    Amounts,
    ClaimRef,
    GrantedClaim,
    Millis,
    Pod,
    PoolName,
    Resource,
    Uid,
    UserName,
)
from app.core.placement.device_fit import DeviceNeed
from app.core.podspec.resource_claims import (
    IMPLICIT,
    Classes,
    DeviceAsk,
    DeviceClass,
    ResourceClaim,
)
from app.core.quantities import ManagedResources, add_amounts, max_amounts


class ClaimCharges:
    """The claims as last observed, and the pods that name them."""

    def __init__(
        self, managed: ManagedResources, classes: Mapping[str, Resource] | None = None
    ) -> None:
        self._managed = managed
        self.classes = self._classes = Classes(managed, classes or {})
        self._claims: dict[ClaimKey, ResourceClaim] = {}
        self._deleted_claims: dict[ClaimKey, list[ResourceClaim]] = {}
        """Deleted claims by name, while ungated pods may still have their devices."""
        self._users: dict[ClaimKey, ClaimUsers] = {}
        self._claims_by_pod: dict[Uid, PodClaims] = {}
        self._stale: dict[Uid, None] = {}
        self._changed: dict[ClaimKey, None] = {}
        """Changed claims since the last `drain_stale_pods`."""
        self._pauses = UpdatePauses[ClaimKey]()
        self._unsettled: dict[ClaimKey, None] = {}
        """Claims that changed in a pause: their waiting pods cannot be released until it ends."""
        self._touched: dict[ClaimKey, bool] = {}
        """Changed claims (True), and claims that a changed pod names (False)."""
        self._seen: dict[Uid, None] = {}
        self._max_by_claim: dict[ClaimKey, tuple[ResourceClaim, int, Amounts]] = {}
        """The most that each claim can get, with the claim and the version of the classes."""
        self._all_device_claims: dict[ClaimKey, None] = {}
        """Claims that request all devices of a node."""
        self._reused: dict[ClaimKey, None] = {}
        """Changed claims, and claims with other users."""
        self._requires_secured = False
        self._secured: dict[ClaimKey, Uid] = {}
        """Claims with the finalizer for long enough: see `claim_protection`."""
        self._lost = LostAllocations()
        self._last_users: dict[ClaimKey, UserName] = {}
        """The user of the last pod of each claim that had no user at some time.

        The allocation of a claim may be observed only after its pod ended.
        """
        self.joins = ClaimJoins()

    def record_claim(self, claim: ResourceClaim) -> None:
        """Record the observed state of a claim."""
        key = claim.key
        known = self._claims.get(key)
        if known is not None and known.uid != claim.uid:
            self._keep_deleted_claim(known)
        self._record_allocation(key, known, claim)
        self._claims[key] = claim
        self._touched[key] = True
        self._reused[key] = None
        if any(a.count is None for r in claim.requests for a in r):
            self._all_device_claims[key] = None
        else:
            self._all_device_claims.pop(key, None)
        lost = key in self._secured and not (self.is_secured(claim) and claim.has_finalizer)
        if lost:
            del self._secured[key]
        if lost or known != claim:
            self._mark_changed(key)

    def drop_claim(self, key: ClaimKey) -> None:
        """Record that a claim was deleted. Ungated pods are still charged for it.

        They may run with its devices: users with edit permission can delete a claim in use.
        """
        known = self._claims.pop(key, None)
        self._all_device_claims.pop(key, None)
        self._max_by_claim.pop(key, None)
        if known is not None:
            self._last_users.pop(key, None)
            self._reused[key] = None
            self._keep_deleted_claim(known)
            self._secured.pop(key, None)
            self._touched[key] = True
            self._mark_changed(key)

    def _record_allocation(
        self, key: ClaimKey, known: ResourceClaim | None, claim: ResourceClaim
    ) -> None:
        """Record which bound pods keep devices that a claim loses. It may get them back."""
        if known is None:
            return
        was_freed = known.allocated_devices is not None and claim.allocated_devices is None
        if was_freed or claim.uid != known.uid:
            self._last_users.pop(key, None)
        if claim.allocated_devices is not None:
            self._lost.restore(key, claim.allocated_devices)
        elif was_freed and claim.uid == known.uid:
            users = self._users.get(key)
            bound = users.bound_pods if users is not None else set()
            self._lost.add(known, self._amounts_of(known), bound)

    def set_secured_required(self, guarded: bool) -> None:
        """Set whether held pods wait until their claims are secured. No claim is secured yet."""
        self._requires_secured = guarded
        self._secured.clear()
        for key in self._users:
            self._mark_users_stale(key)

    def mark_secured(self, key: ClaimKey) -> None:
        """Record that a claim has had the finalizer for long enough."""
        claim = self._claims.get(key)
        if claim is not None and claim.has_finalizer and not self.is_secured(claim):
            self._secured[key] = claim.uid
            self._mark_changed(key)

    def unmark_secured(self, key: ClaimKey) -> None:
        """Record that a claim may lose its finalizer."""
        if self._secured.pop(key, None) is not None:
            self._mark_changed(key)

    def is_secured(self, claim: ResourceClaim) -> bool:
        """Return whether a claim has had the finalizer for long enough."""
        return self._secured.get(claim.key) == claim.uid

    def _keep_deleted_claim(self, claim: ResourceClaim) -> None:
        if not self.is_in_use(claim.key):
            return
        former = self._deleted_claims.setdefault(claim.key, [])
        counts = self._amounts_of(claim)
        if not any(_covers(self._amounts_of(each), counts) for each in former):
            former[:] = [each for each in former if not _covers(counts, self._amounts_of(each))]
            former.append(claim)

    def find_claim(self, key: ClaimKey) -> ResourceClaim | None:
        """Return a claim as last observed, or None."""
        return self._claims.get(key)

    def count_amounts(self, claim: ResourceClaim) -> Amounts:
        """Return the managed amounts of a claim."""
        return self._amounts_of(claim)

    def _amounts_of(self, claim: ResourceClaim) -> Amounts:
        is_allocated = claim.allocated_devices is not None
        return self._classes.count_amounts(claim) if is_allocated else self._max_amounts(claim)

    def _max_amounts(self, claim: ResourceClaim) -> Amounts:
        """Return `count_max_amounts` of a claim, computed once for each version of the claim.

        A claim may have thousands of alternatives, and thousands of waiting pods.
        """
        if claim.key in self._all_device_claims:  # it depends on the nodes
            return self._classes.count_max_amounts(claim)
        known = self._max_by_claim.get(claim.key)
        if known is None or known[0] is not claim or known[1] != self._classes.version:
            most = self._classes.count_max_amounts(claim)
            known = self._max_by_claim[claim.key] = claim, self._classes.version, most
        return known[2]

    def has_devices(self, requests: Amounts) -> bool:
        """Return whether requests of containers include managed devices."""
        return self._managed.has_managed(self._classes.replace_classes(requests))

    def is_in_use(self, key: ClaimKey) -> bool:
        """Return whether a pod that is ungated or being released names a claim."""
        users = self._users.get(key)
        return users is not None and bool(users.using)

    def ungated_users(self, key: ClaimKey) -> tuple[Uid, ...]:
        """Return the ungated and releasing pods that name a claim, in order of release."""
        users = self._users.get(key)
        return tuple(uid for _, uid in users.using) if users is not None else ()

    def is_awaited(self, key: ClaimKey) -> bool:
        """Return whether a held pod names a claim."""
        users = self._users.get(key)
        return users is not None and bool(users.waiting)

    def shared_claims_of(self, uid: Uid) -> list[ClaimKey]:
        """Return the claims for devices that an ungated pod shares with other ungated pods."""
        standing = self._claims_by_pod.get(uid)
        if standing is None or standing.use is None:
            return []
        return [
            key
            for key in standing.keys
            if len(self._users[key].using) > 1 and self._may_have_devices(key)
        ]

    def has_unshared_devices(self, uid: Uid) -> bool:
        """Return whether an ungated pod is the only user of a claim for devices."""
        standing = self._claims_by_pod.get(uid)
        if standing is None or standing.use is None:
            return False
        for key in standing.keys:
            claim = self._claims.get(key)
            if claim is not None and len(self._users[key].using) == 1 and self.count_amounts(claim):
                return True
        return False

    def charged_pod_of(self, key: ClaimKey) -> Uid | None:
        """Return the pod that is charged for a claim in use, or None."""
        users = self._users.get(key)
        first = users.charged_pod if users is not None else None
        return first.uid if first is not None else None

    def claims_to_join(self, uid: Uid) -> list[ClaimKey]:
        """Return the claims of a pod that ungated pods use."""
        standing = self._claims_by_pod.get(uid)
        return [key for key in standing.keys if self._users[key].using] if standing else []

    def set_reclaimed(self, key: ClaimKey, reclaimed: bool) -> None:
        """Set whether the pod that is charged for a claim is being evicted."""
        self.joins.set_reclaimed(key, reclaimed)
        self._stale.update(dict.fromkeys(self._waiting_pods(key)))

    def mark_protected(self, uid: Uid) -> None:
        """Record that no reclaim will take a pod with claims, because of its gang."""
        if uid in self._claims_by_pod:
            self.joins.protected.add(uid)
            self._stale[uid] = None

    def unmark_protected(self, uid: Uid) -> None:
        """Record that a reclaim may take a pod again, because its gang changed."""
        self.joins.protected.discard(uid)
        self._stale[uid] = None

    def leftover_user(self, key: ClaimKey) -> UserName | None:
        """Return the user to charge for an allocated claim without users. None: none is known.

        That is the user of its last pod, else of a pod that waits for it.
        """
        users = self._users.get(key)
        if key in self._last_users or users is None or not users.waiting:
            return self._last_users.get(key)
        first: Uid = min(peers[0] for peers in users.waiting.values())
        return self._claims_by_pod[first].user

    def set_leftover(self, key: ClaimKey, why: str | None) -> None:
        """Set why waiting pods may not use a charged claim without users. None: not charged."""
        if self.joins.set_leftover(key, why):
            self._stale.update(dict.fromkeys(self._waiting_pods(key)))

    def _may_have_devices(self, key: ClaimKey) -> bool:
        claim = self._claims.get(key)
        if claim is None or key in self._deleted_claims or key in self._lost:
            return True
        if claim.allocated_devices is not None and not self._users[key].unbound:
            return bool(self._amounts_of(claim))
        return bool(self._max_amounts(claim) or self._amounts_of(claim))

    def current_grants(self, pod: Pod) -> tuple[GrantedClaim, ...]:
        """Return the current claims of a pod. A release at this moment is for these."""
        found = {}
        for ref in pod.claims:
            claim = self._claims.get((pod.namespace, ref.name))
            if claim is not None:
                found[ref.name] = GrantedClaim(ref.name, claim.uid, self._amounts_of(claim))
        return tuple(found.values())

    def device_needs(self, pod: Pod) -> list[DeviceNeed]:
        """Return what a pod needs of the devices of its node, besides amounts."""
        found = []
        for ref in pod.claims:
            claim = self._claims.get((pod.namespace, ref.name))
            if claim is None:
                continue
            if claim.allocated_devices is None:
                found += [DeviceNeed(asks=alternatives) for alternatives in claim.requests]
            else:
                own = tuple(each.device for each in claim.allocated_devices if not each.is_admin)
                found.append(DeviceNeed(fixed=own))
        for resource, count in (
            pod.demand if pod.container_requests is None else pod.container_requests
        ).items():
            if resource.startswith(IMPLICIT):
                ask = DeviceAsk(resource.removeprefix(IMPLICIT), count, resource)
                found.append(DeviceNeed(asks=(ask,)))
            elif resource in self._managed and count > 0:
                found.append(DeviceNeed(extended=resource))
        return found

    def mark_all_changed(self) -> None:
        """Mark every claim as changed."""
        self._touched = dict.fromkeys((*self._claims, *self._users), True)

    def drain_changed(self) -> tuple[list[ClaimKey], dict[Uid, None]]:
        """Return, once, the claims to check and the ungated pods to judge.

        A pod is judged if it was observed or one of its claims changed, but not if another pod
        changed.
        """
        touched, self._touched = self._touched, {}
        pods, self._seen = self._seen, {}
        for key, changed in touched.items():
            if changed:
                pods |= dict.fromkeys(self.ungated_users(key))
        return list(touched), pods

    def drain_reused(self) -> list[ClaimKey]:
        """Return, once, the claims that changed, came, went, or have other users."""
        reused, self._reused = list(self._reused), {}
        return reused

    def record_class(self, known: DeviceClass) -> None:
        """Record the observed state of a DeviceClass."""
        if self._classes.store_class(known):
            self._stale.update(dict.fromkeys(self._claims_by_pod))

    def drop_class(self, name: str) -> None:
        """Record that a DeviceClass was deleted."""
        if self._classes.drop_class(name):
            self._stale.update(dict.fromkeys(self._claims_by_pod))

    def recount_all_device_claims(self) -> None:
        """Account again the users of claims for all devices of a node: nodes have other devices."""
        for key in self._all_device_claims:
            self._mark_changed(key)

    def charge_pod(self, pod: Pod, use: ClaimUse | None) -> Pod:
        """Return a pod with its charged requests. `use` is None while it is held.

        The charge of pods that share a claim with it may change: see `drain_stale_pods`.
        """
        if pod.container_requests is None:
            return pod
        keys = dict.fromkeys((pod.namespace, ref.name) for ref in pod.claims if ref.name)
        if use is not None:
            keys |= dict.fromkeys((pod.namespace, grant.name) for grant in pod.granted_claims or ())
            for key in keys:
                self._touched.setdefault(key, False)
            if keys:
                self._seen[pod.uid] = None
        group = (pod.namespace, pod.user, pod.gang) if pod.gang else (pod.uid,)
        unbound = use is not None and pod.node is None
        standing = PodClaims(tuple(keys), group, use, unbound, pod.user)
        known = self._claims_by_pod.get(pod.uid)
        if known != standing:
            self._claims_by_pod[pod.uid] = standing
            self._move(pod.uid, known, standing)
        return self._charge(pod, pod.container_requests, standing)

    def charge_proposed(self, pod: Pod, new: Mapping[str, ResourceClaim], charged: set[str]) -> Pod:
        """Return a pod that does not exist with the charge that it would have, and no claims.

        The pod must need devices. `new`: claims that do not exist, by the entry of the pod.
        `charged`: names of claims that the trial counts already; those of this pod are added.
        Raises InvalidInput if a claim or device class is missing.
        """
        plain = pod.container_requests
        assert plain is not None, "the caller charges only pods that need devices"
        demand = self._classes.replace_classes(plain)
        asks = self._managed.has_managed(demand)
        tied: PoolName | None = None
        names = {r.removeprefix(IMPLICIT) for r in plain if r.startswith(IMPLICIT)}
        for ref in pod.claims:
            key = (pod.namespace, ref.name)
            claim = new.get(ref.entry) or self._claims.get(key)
            if claim is None:
                what = f"ResourceClaim {ref.name}" if ref.name else f"template of claim {ref.entry}"
                raise InvalidInput(f"There is no {what}; create it, or add it to the manifest.")
            names |= claim.class_names
            amounts = self._max_amounts(claim)
            asks = asks or bool(amounts)
            users = self._users.get(key)
            first = users.charged_pod if users is not None else None
            is_charged = first is not None or self.joins.is_leftover(key)
            if is_charged and amounts:
                tied = tied or (first.pool if first is not None else None)
                is_settled = users is None or not users.unbound
                if is_settled and ref.name not in charged:
                    demand = add_amounts(demand, self._growth(key))
            elif ref.name not in charged:
                demand = add_amounts(demand, amounts)
            if ref.name:
                charged.add(ref.name)
        if absent := self._classes.first_missing(names):
            raise InvalidInput(f"There is no DeviceClass {absent}; name an existing one.")
        return replace(
            pod,
            demand=demand,
            claims=(),
            container_requests=None,
            claim_pool=tied,
            needs_managed=asks,
        )

    def forget_pod(self, uid: Uid) -> None:
        """Remove a deleted pod. A pod without claims is ignored."""
        self.joins.protected.discard(uid)
        self._move(uid, self._claims_by_pod.pop(uid, None), None)

    def drain_stale_pods(self, now: Millis) -> list[Uid]:
        """Return, once, the pods with an outdated charge.

        If a claim changes again within a pause, its waiting pods are returned once more:
        `charge_pod` marks them as `claims_unsettled`, so that none is released with an outdated
        charge. Further changes count at the end of the pause.
        """
        for key in self._pauses.end_expired(now):
            if key in self._unsettled:
                del self._unsettled[key]
                self._changed[key] = None
        changed, self._changed = self._changed, {}
        for key in [each for each in changed if each not in self._unsettled]:
            waiting = self._waiting_pods(key)
            if key in self._pauses:
                self._unsettled[key] = None
            else:
                # One pause for two updates, because a change in the pause needs another one. A pod
                # counts for each of its claims, because these can change in turn.
                claims = sum(len(self._claims_by_pod[uid].keys) for uid in waiting)
                self._pauses.start(key, 2 * claims if len(waiting) > FEW_PODS else 0, now)
            self._stale.update(dict.fromkeys(waiting))
        stale, self._stale = list(self._stale), {}
        return stale

    def due(self) -> Millis | None:
        """Return when `drain_stale_pods` has more to return without a new event."""
        return self._pauses.due(self._unsettled)

    def _move(self, uid: Uid, old: PodClaims | None, new: PodClaims | None) -> None:
        if old is not None:
            for key in old.keys:
                self._remove_user(uid, old, key)
        if new is not None:
            for key in new.keys:
                self._reused[key] = None
                self._add_user(uid, new, key)
        for key in old.keys if old else ():
            users = self._users[key]
            self._touched.setdefault(key, False)
            self._reused[key] = None
            is_used = new is not None and new.use is not None and key in new.keys
            if not is_used and self._lost.forget_pod(key, uid):
                self._mark_users_stale(key)
            if not users.using and self._deleted_claims.pop(key, []):
                self._mark_users_stale(key)
            if not users.using and not users.waiting:
                del self._users[key]

    def _add_user(self, uid: Uid, standing: PodClaims, key: ClaimKey) -> None:
        users = self._users.setdefault(key, ClaimUsers())
        if standing.use is None:
            peers = users.waiting.setdefault(standing.group, SortedSet())
            if peers:
                self._stale[peers[0]] = None
            peers.add(uid)
            self._touched.setdefault(key, False)
            return
        before = users.charged_pod
        users.using[standing.use.served, uid] = standing.use.pool
        if standing.unbound:
            users.unbound.add(uid)
            if len(users.unbound) == 1 and self._growth(key):
                self._mark_users_stale(key)
        self._mark_charge_moved(users, before)

    def _remove_user(self, uid: Uid, standing: PodClaims, key: ClaimKey) -> None:
        users = self._users[key]
        if standing.use is None:
            peers = users.waiting[standing.group]
            peers.discard(uid)
            if peers:
                self._stale[peers[0]] = None
            else:
                del users.waiting[standing.group]
        else:
            before = users.charged_pod
            del users.using[standing.use.served, uid]
            if standing.unbound:
                users.unbound.discard(uid)
                if not users.unbound and self._growth(key):
                    self._mark_users_stale(key)
            if not users.using and key in self._claims:
                self._last_users[key] = standing.user
            self._mark_charge_moved(users, before)

    def _mark_charge_moved(self, users: ClaimUsers, before: ChargedPod | None) -> None:
        """If another pod is charged now, mark both pods and all waiting pods as stale."""
        after = users.charged_pod
        if before == after:
            return
        for each in (before, after):
            if each is not None:
                self._stale[each.uid] = None
        for peers in users.waiting.values():
            self._stale.update(dict.fromkeys(peers))

    def _mark_users_stale(self, key: ClaimKey) -> None:
        users = self._users.get(key)
        if users is None:
            return
        self._stale.update(dict.fromkeys(uid for _, uid in users.using))
        self._stale.update(dict.fromkeys(self._waiting_pods(key)))

    def _mark_changed(self, key: ClaimKey) -> None:
        """Mark the users of a changed claim as stale: ungated pods now, waiting pods by pauses."""
        users = self._users.get(key)
        if users is not None:
            self._stale.update(dict.fromkeys(uid for _, uid in users.using))
            self._changed[key] = None

    def _waiting_pods(self, key: ClaimKey) -> list[Uid]:
        users = self._users.get(key)
        return [uid for peers in users.waiting.values() for uid in peers] if users else []

    def _charge(self, pod: Pod, plain: Mapping[Resource, int], standing: PodClaims) -> Pod:
        demand = self._classes.replace_classes(plain)
        asks = self._managed.has_managed(demand)
        tied: PoolName | None = None
        waits = ""
        for key in standing.keys:
            amounts = self._amounts(pod, key, standing)
            if amounts:
                asks = True
                first = self._users[key].charged_pod
                if self._is_charged(pod.uid, standing, key):
                    demand = add_amounts(demand, amounts)
                elif standing.use is None and (first is not None or self.joins.is_leftover(key)):
                    tied = tied or (first.pool if first is not None else None)
                    waits = waits or self._why_not_join(pod, key, first)
                    if self._is_first_to_join(pod.uid, key, standing):
                        demand = add_amounts(demand, self._growth(key))
        unsettled = standing.use is None and any(key in self._unsettled for key in standing.keys)
        awaits = tuple(
            ref.entry
            for ref in pod.claims
            if not unsettled and self._is_claim_missing(pod, ref, standing)
        )
        securing = (
            standing.use is None and self._requires_secured and not self._are_secured(standing)
        )
        no_class = self._missing_class(plain, standing) if standing.use is None else ""
        # A claim or class with unknown content may be a managed resource.
        asks = asks or (standing.use is None and bool(awaits or no_class))
        return replace(
            pod,
            demand=demand,
            missing_claims=awaits,
            missing_class=no_class,
            finalizer_is_new=securing,
            claims_unsettled=unsettled,
            claim_pool=tied,
            claim_refusal=waits,
            needs_managed=asks,
        )

    def _why_not_join(self, pod: Pod, key: ClaimKey, first: ChargedPod | None) -> str:
        use = self._claims_by_pod[first.uid].use if first is not None else None
        return self.joins.why_not_join(pod, key, use)

    def _missing_class(self, plain: Mapping[Resource, int], standing: PodClaims) -> str:
        """Return a device class that a pod needs and that does not exist, "" if there is none."""
        names = {r.removeprefix(IMPLICIT) for r in plain if r.startswith(IMPLICIT)}
        for key in standing.keys:
            claim = self._claims.get(key)
            names |= claim.class_names if claim is not None else set()
        return self._classes.first_missing(names)

    def _are_secured(self, standing: PodClaims) -> bool:
        claims = (self._claims.get(key) for key in standing.keys)
        return all(claim is not None and self.is_secured(claim) for claim in claims)

    def _amounts(self, pod: Pod, key: ClaimKey, standing: PodClaims) -> dict[Resource, int]:
        """Return the amounts of a claim. If it was replaced in use, return the largest amounts."""
        claim = self._claims.get(key)
        found: dict[Resource, int] = {}
        if claim is not None and not (key in self._lost and claim.allocated_devices is None):
            found = dict(self._amounts_of(claim))
        users = self._users[key]
        if users.unbound or not users.using:
            found = add_amounts(found, self._growth(key))
        for amounts in self._lost.amounts_of(key):
            found = add_amounts(found, amounts)
        for former in self._deleted_claims.get(key, ()):
            found = max_amounts(found, self._amounts_of(former))
        if standing.use is not None:
            for grant in pod.granted_claims or ():
                same = claim is not None and claim.uid == grant.uid
                # A class may be deleted while its devices are in use.
                is_known = claim is not None and not self._classes.first_missing(claim.class_names)
                if grant.name == key[1] and not (same and is_known):
                    found = max_amounts(found, grant.amounts)
        return found

    def _growth(self, key: ClaimKey) -> Amounts:
        """Return how much more an allocated claim may get if it is allocated again.

        If it lost its allocation in use, bound pods keep that, and this is a whole new allocation.
        """
        claim = self._claims.get(key)
        if claim is None:
            return {}
        if claim.allocated_devices is None:
            return self._max_amounts(claim) if key in self._lost else {}
        counts = self._amounts_of(claim)
        most = self._max_amounts(claim)
        return {r: v - counts.get(r, 0) for r, v in most.items() if v > counts.get(r, 0)}

    def _is_first_to_join(self, uid: Uid, key: ClaimKey, standing: PodClaims) -> bool:
        """Return whether a waiting pod is the first unbound user of a claim, also in its gang."""
        users = self._users[key]
        return not users.unbound and users.waiting[standing.group][0] == uid

    def _is_claim_missing(self, pod: Pod, ref: ClaimRef, standing: PodClaims) -> bool:
        """Return whether an unbound pod cannot be scheduled because this claim is missing."""
        if pod.node is not None:
            return False
        key = (pod.namespace, ref.name)
        claim = self._claims.get(key)
        if claim is None or claim.terminating:
            return True
        if standing.use is None and key in self._deleted_claims:
            return True
        return ref.generated and not claim.is_made_for(pod)

    def _is_charged(self, uid: Uid, standing: PodClaims, key: ClaimKey) -> bool:
        users = self._users[key]
        first = users.charged_pod
        if first is not None:
            return first.uid == uid
        if self.joins.is_leftover(key):
            return False
        first_waiting: Uid = users.waiting[standing.group][0]
        return uid == first_waiting


def _covers(counts: Amounts, others: Amounts) -> bool:
    return all(counts.get(resource, 0) >= value for resource, value in others.items())
