"""Disruption budgets: whether several pods could be evicted together. Reads only.

The Eviction API judges one pod at a time, and so do its dry runs: of a gang it would let some go
and keep the others. Hence the pods that count are counted against each budget here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from app import wire
from app.core.asks.terms import Requirement, has_all
from app.core.effects import PodRef
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import Uid
from app.kube.client import Client


class BudgetSpec(wire.Wire, frozen=True):
    selector: wire.LabelSelector | None = None


class BudgetStatus(wire.Wire, frozen=True):
    disruptions_allowed: int = 0


class Budget(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


class Budgets(wire.Wire, frozen=True):
    items: tuple[Budget, ...] | None = None


class Status(wire.Wire, frozen=True):
    conditions: list[wire.Condition] | None = None


class Guarded(wire.Wire, frozen=True):
    """A pod, as far as budgets look at it."""

    metadata: wire.Metadata = wire.Metadata()
    status: Status = Status()

    @property
    def counts(self) -> bool:
        """Whether to evict it takes something of a budget: it is ready, and does not leave."""
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
        return ready and self.metadata.deletion_timestamp is None


_budgets = msgspec.json.Decoder(Budgets)
_pod = msgspec.json.Decoder(Guarded)


async def read_guarded(client: Client, path: str, uid: Uid, timeout: float) -> Guarded | None:
    """Read this very pod; None if it is gone. Raises ClusterError."""
    try:
        found = _pod.decode(await client.request("GET", path, timeout=timeout))
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
    except ClusterRefused as error:
        if error.status == 404:
            return None
        raise
    return found if found.metadata.uid == uid else None


async def overdrawn(
    client: Client, pods: Iterable[tuple[PodRef, Guarded]], timeout: float
) -> dict[Uid, str]:
    """Return the pods whose budget does not allow to evict all of these, each with the reason.

    Raises ClusterError.
    """
    by_namespace: defaultdict[str, list[tuple[PodRef, Guarded]]] = defaultdict(list)
    for ref, pod in pods:
        if pod.counts:
            by_namespace[ref.namespace].append((ref, pod))
    found: dict[Uid, str] = {}
    for namespace, members in by_namespace.items():
        if len(members) > 1:  # of one alone the dry run has told
            for budget in await _list(client, namespace, timeout):
                found |= _beyond(budget, members)
    return found


def _beyond(budget: Budget, members: list[tuple[PodRef, Guarded]]) -> dict[Uid, str]:
    selector = budget.spec.selector
    if selector is None:
        return {}
    chosen = [ref.uid for ref, pod in members if _selects(selector, pod.metadata.labels or {})]
    allowed = max(0, budget.status.disruptions_allowed)
    why = (
        f"disruption budget {budget.metadata.namespace}/{budget.metadata.name} allows to evict "
        f"{allowed} of the {len(chosen)} that would have to go together"
    )
    return dict.fromkeys(chosen, why) if len(chosen) > allowed else {}


def _selects(selector: wire.LabelSelector, labels: Mapping[str, str]) -> bool:
    """Tell whether this selects a pod; an empty one selects every pod."""
    rules = (
        Requirement(each.key, each.operator, tuple(each.values or ()))
        for each in selector.match_expressions or ()
    )
    wanted = (selector.match_labels or {}).items()
    return has_all(labels, wanted) and all(rule.holds(labels) for rule in rules)


async def _list(client: Client, namespace: str, timeout: float) -> tuple[Budget, ...]:
    path = f"/apis/policy/v1/namespaces/{quote(namespace, safe='')}/poddisruptionbudgets"
    try:
        return _budgets.decode(await client.request("GET", path, timeout=timeout)).items or ()
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
