"""Converts PodDisruptionBudgets, and checks whether several pods could be evicted together.

The Eviction API and its dry runs judge one pod at a time. It would evict some pods of a gang and
refuse the others. So this module counts the evicted pods against each budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from urllib.parse import quote

import msgspec

from app.core.effects import PodRef
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.events import BudgetObserved
from app.core.model import Millis, Uid
from app.core.podspec import disruption_budget
from app.core.podspec.constraints import NodeSelectorRequirement
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client

PAGE_SIZE = 16
"""Budgets per page of a list. Each may have more than a megabyte."""

MOST_BUDGETS = 1000
"""Limit of budgets that are read per namespace. The Eviction API checks each pod against all."""

DEFAULT_GRACE = 30
"""Grace period in seconds of a pod that states no other."""


class BudgetSpec(objects.KubeStruct, frozen=True):
    selector: objects.LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class BudgetStatus(objects.KubeStruct, frozen=True):
    disruptions_allowed: int = 0
    expected_pods: int = 0
    observed_generation: int = 0


class BudgetObject(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def read_budget(budget: BudgetObject, at: Millis) -> BudgetObserved:
    """Return the event for a budget."""
    meta, spec, status = budget.metadata, budget.spec, budget.status
    return BudgetObserved(
        at,
        disruption_budget.DisruptionBudget(
            meta.namespace,
            meta.name,
            None if spec.selector is None else _rules(spec.selector),
            spec.min_available,
            spec.max_unavailable,
            status.observed_generation >= meta.generation,
            status.expected_pods,
            status.disruptions_allowed,
        ),
    )


class BudgetChecker(objects.KubeStruct, frozen=True):
    metadata: objects.ListMeta = objects.ListMeta()
    items: tuple[BudgetObject, ...] | None = None


class BudgetStatusObject(objects.KubeStruct, frozen=True):
    conditions: list[objects.ConditionObject] | None = None


class GuardedMetadata(objects.Metadata, frozen=True):
    deletion_grace_period_seconds: int | None = None


class GuardedSpec(objects.KubeStruct, frozen=True):
    termination_grace_period_seconds: int | None = None


class BudgetedPod(objects.KubeStruct, frozen=True):
    """The fields of a pod that budgets and evictions depend on."""

    metadata: GuardedMetadata = GuardedMetadata()
    spec: GuardedSpec = GuardedSpec()
    status: BudgetStatusObject = BudgetStatusObject()

    @property
    def grace_seconds(self) -> int:
        """Return its grace period in seconds: that of its deletion if it is terminating."""
        begun = self.metadata.deletion_grace_period_seconds
        own = self.spec.termination_grace_period_seconds
        return begun if begun is not None else DEFAULT_GRACE if own is None else own

    @property
    def counts_against_budget(self) -> bool:
        """Return whether its eviction counts against a budget: it is ready and not terminating."""
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
        return ready and self.metadata.deletion_timestamp is None


_budgets = Decoder(BudgetChecker)
_pod = Decoder(BudgetedPod)


async def read_guarded_pod(
    client: Client, path: str, uid: Uid, timeout: float
) -> BudgetedPod | None:
    """Return the pod with this uid, or None if it is gone. Raises ClusterError."""
    try:
        found = _pod.decode(await client.request("GET", path, timeout=timeout))
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
    except ClusterRefused as error:
        if error.status == 404:
            return None
        raise
    return found if found.metadata.uid == uid else None


async def find_overdrawn(
    client: Client, pods: Iterable[tuple[PodRef, BudgetedPod]], timeout: float
) -> dict[Uid, str]:
    """Return the pods with a budget that forbids the eviction of all `pods`, each with the reason.

    Raises ClusterError.
    """
    by_namespace: defaultdict[str, list[tuple[PodRef, BudgetedPod]]] = defaultdict(list)
    for ref, pod in pods:
        if pod.counts_against_budget:
            by_namespace[ref.namespace].append((ref, pod))
    found: dict[Uid, str] = {}
    for namespace, members in by_namespace.items():
        if len(members) > 1:  # the dry run has checked a single pod
            async for budget in _read_budgets(client, namespace, timeout):
                found |= _refused_by_budget(budget, members)
    return found


def _refused_by_budget(
    budget: BudgetObject, members: list[tuple[PodRef, BudgetedPod]]
) -> dict[Uid, str]:
    selector = budget.spec.selector
    if selector is None:
        return {}
    rules = _rules(selector)
    chosen = [
        ref.uid
        for ref, pod in members
        if all(rule.matches(pod.metadata.labels or {}) for rule in rules)
    ]
    allowed = max(0, budget.status.disruptions_allowed)
    why = (
        f"disruption budget {budget.metadata.namespace}/{budget.metadata.name} allows to evict "
        f"{allowed} of the {len(chosen)} that would have to go together"
    )
    return dict.fromkeys(chosen, why) if len(chosen) > allowed else {}


def _rules(selector: objects.LabelSelector) -> tuple[NodeSelectorRequirement, ...]:
    """Return a selector as requirements. If it is too large, return (), which selects every pod."""
    written = selector.match_expressions or ()
    rules = (
        NodeSelectorRequirement(each.key, each.operator, tuple(each.values or ()))
        for each in written
    )
    return disruption_budget.selects(selector.match_labels, tuple(rules))


async def _read_budgets(
    client: Client, namespace: str, timeout: float
) -> AsyncIterator[BudgetObject]:
    """Yield the budgets of a namespace, `MOST_BUDGETS` at most, one page in memory at a time."""
    path = f"/apis/policy/v1/namespaces/{quote(namespace, safe='')}/poddisruptionbudgets"
    read, more = 0, [("limit", str(PAGE_SIZE))]
    while read < MOST_BUDGETS:
        answer = await client.request("GET", path, query=more, timeout=timeout)
        try:
            page = _budgets.decode(answer)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
        for budget in page.items or ():
            yield budget
        read += len(page.items or ())
        if not page.metadata.continue_:
            return
        more = [("limit", str(PAGE_SIZE)), ("continue", page.metadata.continue_)]
