"""Pods, nodes, tenants and pools, with only the fields that the rules need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property

from tests.faults.observer.amounts import Amounts, amounts, reserved
from tests.faults.observer.cluster import Object

GATE = "fairgate.io/queue"
OURS = "fairgate.io/"
ADOPTED = "adopted"
RELEASE = re.compile(r"([1-9]\d{0,11})\.([1-9]\d{0,14})", re.ASCII)
FENCE = re.compile(r"0@([1-9]\d{0,11})(\.\d{1,15}){0,2}", re.ASCII)
MIRROR = "kubernetes.io/config.mirror"
NS = "ns."


@dataclass(frozen=True, slots=True)
class Pod:
    """A managed pod: it requests a managed resource, or has claims that may."""

    uid: str
    namespace: str
    name: str
    user: str
    priority: int
    created: int
    demand: Amounts
    gated: bool
    stamp: str
    pool: str
    named: tuple[str, ...]
    selector: Mapping[str, str]
    node: str
    phase: str
    terminating: bool
    mirror: bool
    claims: bool

    @property
    def over(self) -> bool:
        """Return whether the pod has ended. It then neither uses capacity nor waits."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def waits(self) -> bool:
        """Return whether the pod must be in a queue."""
        return self.gated and not self.over and not self.terminating

    @property
    def uses(self) -> bool:
        """Return whether the pod counts as used. A terminating pod counts until it is gone."""
        return not self.gated and not self.over

    @property
    def release(self) -> tuple[int, int] | None:
        """Return (epoch, sequence) of its release stamp, None for any other stamp."""
        match = RELEASE.fullmatch(self.stamp)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def fence(self) -> int:
        """Return the epoch of its fence, 0 if absent."""
        match = FENCE.fullmatch(self.stamp)
        return int(match[1]) if match else 0

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name} ({self.uid})"


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `open` means ready and schedulable."""

    name: str
    labels: Mapping[str, str]
    offers: Amounts
    open: bool


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Tenant. `limits` are by pool. An empty `allowed` means all pools."""

    name: str
    created: int
    parent: str
    namespaces: tuple[str, ...]
    limits: Mapping[str, Amounts]
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """A Pool."""

    name: str
    selector: Mapping[str, str]
    overcommit: Mapping[str, Decimal]
    paused: bool = False


class Managed:
    """The managed resources. A trailing `*` matches any suffix."""

    def __init__(self, patterns: Iterable[str]) -> None:
        words = tuple(patterns)
        self._exact = {word for word in words if not word.endswith("*")}
        self._begins = tuple(word[:-1] for word in words if word.endswith("*"))

    def __contains__(self, resource: str) -> bool:
        return resource in self._exact or (bool(self._begins) and resource.startswith(self._begins))

    def pod(self, item: Object) -> Pod | None:
        """Return a pod if it is managed. Raises ValueError if it cannot be parsed."""
        meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
        demand = reserved(spec)
        claims = bool(spec.get("resourceClaims"))
        if not claims and not any(name in self and value > 0 for name, value in demand.items()):
            return None
        written, labels = meta.get("annotations") or {}, meta.get("labels") or {}
        mirror = MIRROR in written
        named = written.get(OURS + "pools", "").split(",")
        return Pod(
            uid=meta["uid"],
            namespace=meta["namespace"],
            name=meta["name"],
            user="unknown" if mirror else written.get(OURS + "submitter") or "unknown",
            priority=spec.get("priority") or 0,
            created=_time(meta),
            demand=demand,
            gated=any(gate["name"] == GATE for gate in spec.get("schedulingGates") or ()),
            stamp=written.get(OURS + "release", ""),
            pool=labels.get(OURS + "pool", ""),
            named=tuple(name.strip() for name in named if name.strip()),
            selector=spec.get("nodeSelector") or {},
            node=spec.get("nodeName") or "",
            phase=status.get("phase") or "",
            terminating="deletionTimestamp" in meta,
            mirror=mirror,
            claims=claims,
        )


def node(item: Object) -> Node:
    """Return a node."""
    status = item.get("status") or {}
    ready = any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in status.get("conditions") or ()
    )
    return Node(
        item["metadata"]["name"],
        item["metadata"].get("labels") or {},
        amounts(status.get("allocatable")),
        ready and not (item.get("spec") or {}).get("unschedulable"),
    )


def tenant(item: Object) -> Tenant:
    """Return a Tenant."""
    spec = item.get("spec") or {}
    quotas = spec.get("quotas") or ()
    return Tenant(
        item["metadata"]["name"],
        _time(item["metadata"]),
        spec.get("parent") or "",
        tuple(spec.get("namespaces") or ()),
        {each["pool"]: amounts(each.get("limit")) for each in quotas if each.get("limit")},
        tuple(spec.get("pools") or ()),
    )


def pool(item: Object) -> Pool:
    """Return a Pool."""
    spec = item.get("spec") or {}
    more = {name: Decimal(text) for name, text in (spec.get("overcommit") or {}).items()}
    return Pool(
        item["metadata"]["name"], spec.get("nodeSelector") or {}, more, bool(spec.get("paused"))
    )


class Layout:
    """Tenants, pools and nodes at one version. Immutable; `but` returns the next one."""

    def __init__(
        self,
        tenants: Mapping[str, Tenant] | None = None,
        pools: Mapping[str, Pool] | None = None,
        nodes: Mapping[str, Node] | None = None,
    ) -> None:
        self.tenants = tenants or {}
        self.pools = pools or {}
        self.nodes = nodes or {}

    def but(self, kind: str, name: str, value: Tenant | Pool | Node | None) -> Layout:
        """Return the layout after a change or deletion of one object; itself if unchanged."""
        rows: dict[str, object] = dict(getattr(self, kind))
        if rows.get(name) == value:
            return self
        rows.pop(name, None)
        if value is not None:
            rows[name] = value
        parts = {"tenants": self.tenants, "pools": self.pools, "nodes": self.nodes, kind: rows}
        return Layout(**parts)  # type: ignore[arg-type]

    @cached_property
    def every_pool(self) -> Mapping[str, Pool]:
        """The active pools. If no Pool exists, one pool contains every node."""
        return self.pools or {"default": Pool("default", {}, {})}

    @cached_property
    def homes(self) -> Mapping[str, str]:
        """The pool of each node: the first by name that selects the node."""
        homes = {}
        for each in self.nodes.values():
            mine = [p.name for p in self.every_pool.values() if _matches(each.labels, p.selector)]
            if mine:
                homes[each.name] = min(mine)
        return homes

    def offer(self, name: str) -> dict[str, int]:
        """Return the amounts that an open node offers, with overcommit; empty if not open."""
        found = self.nodes.get(name)
        if found is None or not found.open or name not in self.homes:
            return {}
        more = self.every_pool[self.homes[name]].overcommit
        return {r: int(value * more.get(r, Decimal(1))) for r, value in found.offers.items()}

    @cached_property
    def offers(self) -> Mapping[str, Mapping[str, Amounts]]:
        """The amounts that the open nodes offer, by pool and node."""
        found: dict[str, dict[str, Amounts]] = {name: {} for name in self.every_pool}
        for name, home in self.homes.items():
            if self.nodes[name].open:
                found[home][name] = self.offer(name)
        return found

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The tenant of each namespace: the oldest that names it."""
        owners: dict[str, str] = {}
        for each in sorted(self.tenants.values(), key=lambda t: (t.created, t.name)):
            for namespace in each.namespaces:
                owners.setdefault(namespace, each.name)
        return owners

    def tenant_of(self, namespace: str) -> str:
        """Return the tenant that owns a namespace."""
        return self.owners.get(namespace) or NS + namespace

    def path(self, name: str) -> list[str]:
        """Return a tenant and its ancestors. A tenant that closes a cycle counts as top level."""
        path = [name]
        while (above := self._parent(path[-1])) is not None:
            path.append(above)
        return path

    def _parent(self, name: str) -> str | None:
        mine = self.tenants.get(name)
        if mine is None:
            return "default" if name.startswith(NS) else None
        seen, above = {name}, mine.parent
        while above in self.tenants:
            if above in seen:
                return None
            seen.add(above)
            above = self.tenants[above].parent
        return mine.parent if mine.parent in {*self.tenants, "default"} else None

    def pool_of(self, pod: Pod) -> str | None:
        """Return the pool that a released pod is charged to: by its node, else by its label."""
        if pod.node in self.nodes:
            return self.homes.get(pod.node)
        if pod.pool in self.every_pool:
            return pod.pool
        return min(self._serving(pod), default=None)

    def _serving(self, pod: Pod) -> list[str]:
        mine = self.tenants.get(self.tenant_of(pod.namespace))
        allowed = mine.allowed if mine else ()
        return [
            name
            for name, pool in self.every_pool.items()
            if (not pod.named or name in pod.named)
            and (not allowed or name in allowed)
            and not pool.paused
            and name not in self._overlapping
            and all(pool.selector.get(key, value) == value for key, value in pod.selector.items())
            and any(
                _matches(self.nodes[n].labels, pod.selector)
                for n, home in self.homes.items()
                if home == name
            )
        ]

    @cached_property
    def _overlapping(self) -> frozenset[str]:
        later: set[str] = set()
        for each in self.nodes.values():
            claims = [p.name for p in self.every_pool.values() if _matches(each.labels, p.selector)]
            later |= set(sorted(claims)[1:])
        return frozenset(later)


def _matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _time(meta: Object) -> int:
    return int(datetime.fromisoformat(meta["creationTimestamp"]).timestamp() * 1000)
