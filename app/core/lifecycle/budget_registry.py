"""PodDisruptionBudgets, and the held pods that a budget would protect from eviction.

`PodRegistry` requests the protection of each held pod. A budget never decides whether a running pod
is a reclaim candidate: only the Eviction API decides that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

from app.core.lifecycle.update_pauses import UpdatePauses
from app.core.model import Millis, Pod, Uid
from app.core.podspec.disruption_budget import DisruptionBudget

MOST_BUDGETS = 100
"""Maximum of budgets to compare per namespace. If it has more, every pod counts as protected."""

MOST_TERMS_TOGETHER = 300
"""Maximum of requirements and values in these budgets. If there are more, all pods count as
protected."""

_Key = tuple[str, str]


class BudgetRegistry:
    """All budgets by namespace and name, and the managed pods that each one covers."""

    def __init__(self) -> None:
        self._budgets: dict[str, dict[str, DisruptionBudget]] = {}
        self._labels: dict[str, dict[Uid, Mapping[str, str] | None]] = {}
        self._covered: dict[_Key, set[Uid]] = {}
        self._blocking: dict[_Key, bool] = {}
        self._uncompared: dict[str, set[str]] = {}
        """Budgets that must be compared with all pods of their namespace."""
        self._terms: Counter[str] = Counter()
        self._stale: set[str] = set()
        self._pauses = UpdatePauses[str]()
        self._respected = True

    def set_respected(self, respected: bool) -> None:
        """Set whether budgets limit reclaims for a guarantee."""
        if respected != self._respected:
            self._respected = respected
            self._stale.update(self._budgets)

    def record_budget(self, budget: DisruptionBudget) -> None:
        """Record the observed state of a budget."""
        space = self._budgets.setdefault(budget.namespace, {})
        known, key = space.get(budget.name), (budget.namespace, budget.name)
        compared = self._are_compared(budget.namespace)
        space[budget.name] = budget
        if known is None or known.selector != budget.selector:
            self._terms[budget.namespace] += budget.terms - (known.terms if known else 0)
            self._covered.setdefault(key, set())
            self._uncompared.setdefault(budget.namespace, set()).add(budget.name)
            self._stale.add(budget.namespace)
            self._resume(budget.namespace, compared)
        self._update_blocking(budget)

    def drop_budget(self, namespace: str, name: str) -> None:
        """Record that a budget was deleted."""
        space = self._budgets.get(namespace, {})
        compared, known = self._are_compared(namespace), space.pop(name, None)
        if known is None:
            return
        del self._covered[namespace, name], self._blocking[namespace, name]
        self._terms[namespace] -= known.terms
        self._uncompared.get(namespace, set()).discard(name)
        self._stale.add(namespace)
        self._resume(namespace, compared)
        if not space:
            del self._budgets[namespace], self._terms[namespace]
            self._uncompared.pop(namespace, None)

    def observe_pod(self, pod: Pod) -> None:
        """Record the observed state of a managed pod. A terminating pod no longer counts."""
        if pod.terminating:
            self.forget_pod(pod)
            return
        space = self._labels.setdefault(pod.namespace, {})
        if pod.uid in space and space[pod.uid] == pod.labels:
            return
        space[pod.uid] = pod.labels
        if not self._are_compared(pod.namespace):
            return
        for budget in self._budgets.get(pod.namespace, {}).values():
            covered = self._covered[budget.namespace, budget.name]
            (covered.add if budget.covers(pod.labels) else covered.discard)(pod.uid)
            self._update_blocking(budget)

    def forget_pod(self, pod: Pod) -> None:
        """Remove a managed pod that is terminating or gone."""
        space = self._labels.get(pod.namespace, {})
        if pod.uid not in space:
            return
        del space[pod.uid]
        if not space:
            del self._labels[pod.namespace]
        if not self._are_compared(pod.namespace):
            return
        for budget in self._budgets.get(pod.namespace, {}).values():
            self._covered[budget.namespace, budget.name].discard(pod.uid)
            self._update_blocking(budget)

    def drain_stale_pods(self, now: Millis) -> list[Uid]:
        """Return, once, the pods for which `budget_reason` may have changed."""
        self._pauses.end_expired(now)
        due = sorted(space for space in self._stale if space not in self._pauses)
        for space in due:
            self._compare(space)
            self._pauses.start(space, len(self._labels.get(space, {})), now)
        self._stale.difference_update(due)
        return [uid for space in due for uid in self._labels.get(space, {})]

    def due(self) -> Millis | None:
        """Return when `drain_stale_pods` has more to return without a new event."""
        return self._pauses.due(self._stale)

    def budgets_covering(self, pod: Pod) -> list[str]:
        """Return the budgets that cover a pod, as namespace/name.

        If the namespace has too many budgets to compare, return the first ones of the namespace.
        """
        space, compared = self._budgets.get(pod.namespace, {}), self._are_compared(pod.namespace)
        some = islice(space.values(), MOST_BUDGETS)
        found = [b for b in some if not compared or b.covers(pod.labels)]
        return [f"{b.namespace}/{b.name}" for b in found]

    def budget_reason(self, pod: Pod) -> str:
        """Return as text why a starting pod could not be evicted; "" if it could be."""
        space = self._budgets.get(pod.namespace)
        if not space or not self._respected:
            return ""
        if len(space) > MOST_BUDGETS:
            return f"namespace {pod.namespace} has more than {MOST_BUDGETS} disruption budgets"
        if not self._are_compared(pod.namespace):
            return f"the disruption budgets of namespace {pod.namespace} have too large selectors"
        covered = self._covered
        found = [b for b in space.values() if pod.uid in covered[pod.namespace, b.name]]
        if len(found) > 1:
            names = " and ".join(sorted(f"{b.namespace}/{b.name}" for b in found)[:2])
            return f"disruption budgets {names} cover it, and the API evicts no pod of several"
        if found and self._blocking[pod.namespace, found[0].name]:
            return (
                f"disruption budget {pod.namespace}/{found[0].name} allows no eviction of this pod"
            )
        return ""

    def _are_compared(self, namespace: str) -> bool:
        """Return whether the budgets of a namespace are few and small enough to compare."""
        few = len(self._budgets.get(namespace, {})) <= MOST_BUDGETS
        return few and self._terms[namespace] <= MOST_TERMS_TOGETHER

    def _resume(self, namespace: str, compared: bool) -> None:
        """Compare all budgets of a namespace that became comparable. `compared`: it was before."""
        if not compared and self._are_compared(namespace):
            self._uncompared[namespace] = set(self._budgets[namespace])

    def _compare(self, namespace: str) -> None:
        """Compare the pods of a namespace with its new and changed budgets."""
        if not self._are_compared(namespace):
            return
        pods = self._labels.get(namespace, {})
        for name in sorted(self._uncompared.pop(namespace, ())):
            budget = self._budgets[namespace][name]
            self._covered[namespace, name] = {u for u, each in pods.items() if budget.covers(each)}
            self._update_blocking(budget)

    def _update_blocking(self, budget: DisruptionBudget) -> None:
        key = budget.namespace, budget.name
        keeps = budget.blocks_eviction(len(self._covered[key]))
        if self._blocking.get(key) is not keeps:
            self._blocking[key] = keeps
            self._stale.add(budget.namespace)
