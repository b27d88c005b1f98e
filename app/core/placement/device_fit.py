"""Excludes nodes from the requests of a pod: too few devices match, or too few are free.

A pod is compared with the devices right before its release. Each kind of request is a group that
`PodPeers` keeps off the nodes without enough devices, see `DistanceRuleKind.DEVICES`. Devices of
pods that were released but have no allocation yet count as free.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from app.core.model import Node, NodeName, Resource
from app.core.placement.device_capacity import DeviceCapacity
from app.core.placement.pod_affinity import PodPeers
from app.core.podspec.constraints import DistanceRuleKind, PodDistanceRule
from app.core.podspec.devices import DeviceId
from app.core.podspec.resource_claims import Alternatives, DeviceAsk

MOST_KINDS = 64
"""Maximum number of kinds of requests with known nodes. Nodes of the oldest kind are then open."""

MOST_EVALUATED = 8
"""Maximum number of alternatives and selectors in the requests of a pod that are evaluated. Users
write them, and each one is evaluated for every device of the cluster."""


class DeviceNeed(NamedTuple):
    """One request of a pod for devices of its node. One of the three fields is set.

    `asks`: alternatives of a request. `extended`: an extended resource. `fixed`: the devices of an
    allocated claim.
    """

    asks: Alternatives = ()
    extended: Resource | None = None
    fixed: tuple[DeviceId, ...] = ()


@dataclass(slots=True)
class _Kind:
    need: DeviceNeed
    closed: set[NodeName] = field(default_factory=set)


class DeviceFit:
    """The closed nodes of each kind of request in use."""

    def __init__(self, capacity: DeviceCapacity, pod_peers: PodPeers) -> None:
        self._capacity = capacity
        self._pod_peers = pod_peers
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()

    def rules(self, needs: Iterable[DeviceNeed]) -> tuple[PodDistanceRule, ...]:
        """Return the rules that keep a pod off nodes without the devices it needs.

        A cluster without slices has no such rules.
        """
        if not self._capacity.inventory:
            return ()
        return tuple(
            PodDistanceRule(DistanceRuleKind.DEVICES, "", self._group(need))
            for need in _evaluated(needs)
        )

    def update_nodes(self, names: Sequence[NodeName]) -> None:
        """Judge nodes again after a change of their devices, labels or allocations."""
        for group, kind in self._kinds.items():
            for name in names:
                node = self._capacity.inventory.node(name)
                self._set_closed(
                    group, kind, name, node is not None and not self._may_serve(kind.need, node)
                )

    def describe_devices(self, needs: Iterable[DeviceNeed]) -> str:
        """Return as clauses which devices match the requests of a pod, and incomplete pools."""
        wanted = list(_evaluated(needs)) if self._capacity.inventory else []
        described = [need for need in wanted if need.asks][:MOST_CLAUSES]
        found = [
            f"; {self._describe_best_node(need)}{self._capacity.describe_amounts(need.asks)}"
            for need in described
        ]
        problems = self._capacity.inventory.problems() if wanted else {}
        for (driver, pool), problem in list(problems.items())[:1]:
            more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
            found.append(f"; devices without capacity: pool {pool} of {driver}: {problem}{more}")
        return "".join(found)

    def _describe_best_node(self, need: DeviceNeed) -> str:
        """Return the node with most free, then most matching devices, as text."""
        best: tuple[int, int, str, int] | None = None
        for node in sorted(self._capacity.inventory.nodes(), key=lambda each: each.name):
            total = len(self._capacity.inventory.usable_devices(node))
            for ask in need.asks if total else ():
                matching = self._capacity.matching_devices(ask, node)
                free = len(self._capacity.free_devices(matching, ask.shares))
                if best is None or (free, len(matching)) > best[:2]:
                    best = free, len(matching), node.name, total
        if best is None:
            return "no node has devices of a DRA driver"
        free, matching_count, name, total = best
        if not matching_count:
            return f"no device of any node matches its {need.asks[0].name or 'claim'}"
        word = "match" if matching_count > 1 else "matches"
        left = f"{free} of these {'are' if free > 1 else 'is'} free"
        return f"{matching_count} of {total} devices on {name} {word}; " + (
            left if free else "all are allocated"
        )

    def _group(self, need: DeviceNeed) -> str:
        digest = hashlib.blake2b(repr(need).encode(), digest_size=16).hexdigest()
        group = f"devices {digest}"
        if group in self._kinds:
            self._kinds.move_to_end(group)
            return group
        kind = self._kinds[group] = _Kind(need)
        for node in self._capacity.inventory.nodes():
            self._set_closed(group, kind, node.name, not self._may_serve(need, node))
        if len(self._kinds) > MOST_KINDS:
            oldest, gone = self._kinds.popitem(last=False)
            for name in gone.closed:
                self._pod_peers.count_bound((oldest,), name, -1)
        return group

    def _set_closed(self, group: str, kind: _Kind, name: NodeName, closed: bool) -> None:
        if closed and name not in kind.closed:
            kind.closed.add(name)
            self._pod_peers.count_bound((group,), name, 1)
        elif not closed and name in kind.closed:
            kind.closed.discard(name)
            self._pod_peers.count_bound((group,), name, -1)

    def _may_serve(self, need: DeviceNeed, node: Node) -> bool:
        """Return whether the devices of a node may serve a need, beyond the amounts."""
        if need.fixed:
            able = {each.id for each in self._capacity.inventory.usable_devices(node)}
            return all(each in able or self._is_unknown(each) for each in need.fixed)
        if need.extended is not None:
            own = node.allocatable.get(need.extended, 0)
            return self._capacity.serves_extended(node.name, need.extended) if not own else True
        return any(self._has_enough(ask, node) for ask in need.asks)

    def _is_unknown(self, device: DeviceId) -> bool:
        return self._capacity.inventory.find_device(device) is None

    def _has_enough(self, ask: DeviceAsk, node: Node) -> bool:
        """Return whether enough devices match and are free.

        If all devices of the resource match, the free amount of the node decides. So most requests
        close no node, and equal nodes stay equal. The amount does not tell which partitions are
        free, and what is left of a shared device: there are more partitions than the node offers.
        But if the amount keeps the claim away, the node stays open, because a reclaim may free it.
        """
        offered = self._capacity.offered_amount(ask, node)
        if offered == 0 and not ask.is_admin:  # admin access has no amount that keeps it away
            return True
        matching = self._capacity.matching_devices(ask, node)
        if ask.is_admin:
            return len(matching) >= (ask.count or 1)
        free = self._capacity.free_devices(matching, ask.shares)
        if ask.count is None:
            return bool(matching) and len(free) == len(matching)
        if len(free) >= ask.count:
            return True
        if offered is None or len(matching) < offered:
            return False
        has_parts = any(each.device.uses or each.device.limits for each in matching)
        return not has_parts or offered - self._count_held(ask, node) < ask.count

    def _count_held(self, ask: DeviceAsk, node: Node) -> int:
        """Return how many devices of a class are in use on a node, as its amounts count them."""
        held = 0
        for each in self._capacity.matching_devices(replace(ask, selectors=()), node):
            claims = self._capacity.count_claims(each.id)
            held += claims if each.device.is_shared else min(claims, 1)
        return held


MOST_CLAUSES = 2
"""Maximum number of requests that a sentence describes."""


def _evaluated(needs: Iterable[DeviceNeed]) -> Iterator[DeviceNeed]:
    """Yield each need once, without those beyond `MOST_EVALUATED`: they close no node."""
    left = MOST_EVALUATED
    for need in dict.fromkeys(needs):
        size = sum(1 + len(ask.selectors) for ask in need.asks)
        if size <= left:
            left -= size
            yield need
