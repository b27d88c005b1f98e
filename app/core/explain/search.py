"""Finds tenants, users, namespaces, jobs, pods and nodes by a part of their name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import UserNode
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import NodeName, TenantName, UserName

Sees = Callable[[TenantName, UserName], bool]
"""Returns whether the caller may see the pods of a user of a tenant."""


class HitKind(Enum):
    """The kind of a found object, in the order of the answer."""

    TENANT = "tenant"
    USER = "user"
    JOB = "job"
    POD = "pod"
    NAMESPACE = "namespace"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Hit:
    """A found object. Fields that do not apply to its kind are empty.

    A namespace has the tenant of its pods. A job is a gang or the topmost owner of pods.
    """

    kind: HitKind
    name: str
    namespace: str = ""
    tenant: str = ""
    user: str = ""


def search(
    text: str,
    roster: PodRegistry,
    tenancy: TenantDirectory,
    nodes: Iterable[NodeName],
    sees_tenant: Callable[[TenantName], bool],
    sees: Sees,
    most: int,
) -> list[Hit]:
    """Return at most `most` objects of each kind, the best match first.

    An equal name comes before a name that begins with the text. Other matches follow. Upper and
    lower case are equal.
    """
    wanted = text.casefold()
    found = {kind: dict[Hit, int]() for kind in HitKind}

    def add(hit: Hit) -> None:
        rank = _rank(wanted, hit.name.casefold())
        if rank is not None:
            found[hit.kind][hit] = rank

    for name in {*tenancy.tenants, *roster.usage.tree.tenants}:
        if sees_tenant(name):
            add(Hit(HitKind.TENANT, name, tenant=name))
    for name, branch in roster.usage.tree.tenants.items():
        for leaf in branch.children.values():
            if isinstance(leaf, UserNode) and sees(name, UserName(leaf.name)):
                add(Hit(HitKind.USER, leaf.name, tenant=name, user=leaf.name))
    for record in roster.pods.values():
        if record.leaf is None or not sees(*record.leaf.account):
            continue
        tenant, user = record.leaf.account
        pod = record.pod
        add(Hit(HitKind.POD, pod.name, pod.namespace, tenant, user))
        add(Hit(HitKind.NAMESPACE, pod.namespace, pod.namespace, tenant))
        for job in {pod.gang, pod.owner.rpartition("/")[2]} - {""}:
            add(Hit(HitKind.JOB, job, pod.namespace, tenant, user))
    for node in nodes:
        add(Hit(HitKind.NODE, node))
    return [hit for kind in HitKind for hit in _best(found[kind], most)]


def _rank(wanted: str, name: str) -> int | None:
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if wanted in name else None


def _best(hits: dict[Hit, int], most: int) -> list[Hit]:
    def key(hit: Hit) -> tuple[int, str, str, str, str]:
        return hits[hit], hit.name, hit.namespace, hit.tenant, hit.user

    return sorted(hits, key=key)[:most]
