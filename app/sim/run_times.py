"""How long work runs, learned from what ended: per user and size, per tenant and size, and so on.

Pure, and repeatable: the dice are the caller's. What still runs counts too, as having run at
least so long; else the long ones would be missed, for they are the last to end.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from app.core.fair.tenancy import Tenancy
from app.core.model import Amounts, Millis, Pod, TenantName, UserName
from app.core.resources import ManagedResources
from app.core.telling.snapshot import Snapshot

KEPT = 200
"""Runs of one kind that count, the latest: people change what they do."""

TRUST = 5.0
"""Runs of a narrow kind that weigh as much as all that is known of the next wider one."""

LONGEST = Millis(60 * 24 * 3_600_000)


@dataclass(frozen=True, slots=True)
class Kind:
    """Whose pod it is, and how large. Pods of one size class differ by less than a factor 2."""

    tenant: TenantName
    user: UserName
    size: int

    @property
    def levels(self) -> tuple[tuple[object, ...], ...]:
        """What it is known by, from the narrowest to the widest."""
        return (
            ("user", self.tenant, self.user, self.size),
            ("user", self.tenant, self.user),
            ("tenant", self.tenant, self.size),
            ("size", self.size),
            (),
        )


def kind_of(pod: Pod, tenancy: Tenancy, managed: ManagedResources) -> Kind:
    """Return the kind of a pod."""
    return Kind(tenancy.tenant_of(pod.namespace), pod.user, size_of(pod.demand, managed))


def size_of(demand: Amounts, managed: ManagedResources) -> int:
    """Return the size class of a pod that asks for so much; only what is managed counts."""
    return sum(v for r, v in demand.items() if r in managed).bit_length()


@dataclass(frozen=True, slots=True)
class Lasted:
    """One workload that ran, or runs: `ended` tells."""

    kind: Kind
    lasted: Millis
    ended: bool = True


class RunTimes:
    """The runs that are known. `learn` what ended; then ask for draws."""

    def __init__(self, runs: Iterable[Lasted] = ()) -> None:
        self._known: dict[tuple[object, ...], deque[tuple[Millis, bool]]] = {}
        self._sorted: dict[tuple[object, ...], list[tuple[Millis, bool]]] = {}
        for run in runs:
            self.learn(run)

    def __len__(self) -> int:
        """Return how many runs count in all."""
        return len(self._known.get((), ()))

    def copy(self) -> RunTimes:
        """Return the same runs, to add others to."""
        other = RunTimes()
        other._known = {level: known.copy() for level, known in self._known.items()}
        other._sorted = {level: runs.copy() for level, runs in self._sorted.items()}
        return other

    def learn(self, run: Lasted) -> None:
        """A workload ended, or has run so long by now. The latest come last."""
        seen = (run.lasted, not run.ended)
        for level in run.kind.levels:
            known = self._known.setdefault(level, deque())
            known.append(seen)
            ordered = self._sorted.setdefault(level, [])
            insort(ordered, seen)
            if len(known) > KEPT * (1 if level else 5):
                del ordered[bisect_right(ordered, known.popleft()) - 1]

    def draw(self, kind: Kind, ran: Millis, dice: Random) -> Millis:
        """Return how long a workload might run in all that has run so long already.

        A run that has not ended says only that it lasts longer: the draw goes on among those.
        """
        beyond = ran
        levels = [self._sorted.get(level, []) for level in kind.levels]
        for _ in range(8):
            seen = self._one(levels, beyond, dice)
            if seen is None:
                break
            lasted, goes_on = seen
            if not goes_on:
                return lasted
            beyond = lasted
        # Nobody is known to have run longer: what has lasted lasts about as long again.
        return Millis(min(LONGEST, int((beyond + 60_000) / max(0.02, dice.random()))))

    @staticmethod
    def _one(
        levels: Iterable[list[tuple[Millis, bool]]], beyond: Millis, dice: Random
    ) -> tuple[Millis, bool] | None:
        last: tuple[Millis, bool] | None = None
        for ordered in levels:
            first = bisect_right(ordered, (beyond, True))
            longer = len(ordered) - first
            if longer:
                last = ordered[first + int(dice.random() * longer)]
                if dice.random() * (longer + TRUST) < longer:
                    return last
        return last


def observed(runs: RunTimes, snapshot: Snapshot, tenancy: Tenancy) -> RunTimes:
    """Return the runs that are known, and what runs now as having run at least so long."""
    more = runs.copy()
    seen: set[tuple[str, str, str]] = set()
    for pod in snapshot.running:
        name = (pod.namespace, pod.user, pod.gang or pod.uid)
        if name not in seen:
            seen.add(name)
            lasted = Millis(snapshot.at - (pod.started or snapshot.at))
            more.learn(Lasted(kind_of(pod, tenancy, snapshot.managed), lasted, ended=False))
    return more
