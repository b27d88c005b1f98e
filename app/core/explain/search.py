"""Finds tenants, users, namespaces, jobs, pods and nodes by a part of their name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import UserNode
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import NodeName, TenantName, UserName

PORTION = 1000
"""Pods between two pauses of a search; some milliseconds."""

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
class SearchHit:
    """A found object. Fields that do not apply to its kind are empty.

    A namespace has the tenant of its pods. A job is a gang or the topmost owner of pods.
    """

    kind: HitKind
    name: str
    namespace: str = ""
    tenant: str = ""
    user: str = ""


class Search:
    """One search. `run_in_steps` looks at the objects in portions, and `hits` returns the result.

    An equal name comes before a name that begins with the text. Other matches follow. Upper and
    lower case are equal.
    """

    def __init__(
        self, text: str, may_see_tenant: Callable[[TenantName], bool], may_see_user: Sees, most: int
    ) -> None:
        """`most`: the most objects of each kind in the result."""
        self._folded_text = text.casefold()
        self._may_see_tenant = may_see_tenant
        self._may_see_user = may_see_user
        self._most = most
        self._found = {kind: dict[SearchHit, int]() for kind in HitKind}

    def run_in_steps(
        self, registry: PodRegistry, tenancy: TenantDirectory, nodes: Iterable[NodeName]
    ) -> Iterator[None]:
        """Look at all objects. Yield after each portion, so that other work can go on.

        Objects may change between two portions. Such a change may be missed.
        """
        self._add_tenants(registry, tenancy)
        for node in nodes:
            self._add(SearchHit(HitKind.NODE, node))
        yield
        records = list(registry.pods.values())
        for first in range(0, len(records), PORTION):
            for record in records[first : first + PORTION]:
                self._add_pod(record)
            yield

    def hits(self) -> list[SearchHit]:
        """Return the found objects by kind, the best match first."""
        return [hit for kind in HitKind for hit in _best(self._found[kind], self._most)]

    def _add_tenants(self, registry: PodRegistry, tenancy: TenantDirectory) -> None:
        branches = registry.usage.tree.tenants
        for name in {*tenancy.tenants, *branches}:
            if self._may_see_tenant(name):
                self._add(SearchHit(HitKind.TENANT, name, tenant=name))
        for name, branch in branches.items():
            for leaf in branch.children.values():
                if isinstance(leaf, UserNode) and self._may_see_user(name, UserName(leaf.name)):
                    self._add(SearchHit(HitKind.USER, leaf.name, tenant=name, user=leaf.name))

    def _add_pod(self, record: PodRecord) -> None:
        if record.leaf is None or not self._may_see_user(*record.leaf.account):
            return
        tenant, user = record.leaf.account
        pod = record.pod
        self._add(SearchHit(HitKind.POD, pod.name, pod.namespace, tenant, user))
        self._add(SearchHit(HitKind.NAMESPACE, pod.namespace, pod.namespace, tenant))
        for job in {pod.gang, pod.owner.rpartition("/")[2]} - {""}:
            self._add(SearchHit(HitKind.JOB, job, pod.namespace, tenant, user))

    def _add(self, hit: SearchHit) -> None:
        rank = _rank(self._folded_text, hit.name.casefold())
        if rank is not None:
            self._found[hit.kind][hit] = rank


def _rank(wanted: str, name: str) -> int | None:
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if wanted in name else None


def _best(hits: dict[SearchHit, int], most: int) -> list[SearchHit]:
    def key(hit: SearchHit) -> tuple[int, str, str, str, str]:
        return hits[hit], hit.name, hit.namespace, hit.tenant, hit.user

    return sorted(hits, key=key)[:most]
