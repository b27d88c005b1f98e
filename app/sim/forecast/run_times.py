"""Run times of workloads, learned from usage records, and samples drawn from them."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from app.core.explain.snapshot import Snapshot
from app.core.fairshare.tenants import TenantDirectory
from app.core.model import Amounts, Millis, Pod, TenantName, UserName
from app.core.quantities import ManagedResources

KEPT = 200
"""Latest runs of one class that count, because workloads change over time."""

TRUST = 5.0
"""Runs of a narrow class that weigh as much as the whole next wider class."""

LONGEST = Millis(60 * 24 * 3_600_000)


@dataclass(frozen=True, slots=True)
class RunTimeClass:
    """Tenant, user and size class. Requests in one size class differ by less than a factor 2."""

    tenant: TenantName
    user: UserName
    size: int

    @property
    def levels(self) -> tuple[tuple[object, ...], ...]:
        """The classes that it belongs to, narrowest first."""
        return (
            ("user", self.tenant, self.user, self.size),
            ("user", self.tenant, self.user),
            ("tenant", self.tenant, self.size),
            ("size", self.size),
            (),
        )


def run_time_class(pod: Pod, tenancy: TenantDirectory, managed: ManagedResources) -> RunTimeClass:
    """Return the kind of a pod."""
    return RunTimeClass(
        tenancy.tenant_of(pod.namespace), pod.user, request_size_class(pod.demand, managed)
    )


def request_size_class(demand: Amounts, managed: ManagedResources) -> int:
    """Return the size class of a request. Only managed resources count."""
    return sum(v for r, v in demand.items() if r in managed).bit_length()


@dataclass(frozen=True, slots=True)
class ObservedRunTime:
    """Run time of one workload; a lower bound if it has not `has_ended`."""

    kind: RunTimeClass
    run_time: Millis
    has_ended: bool = True


class RunTimes:
    """Known run times. Add them with `add_run`, sample them with `sample`."""

    def __init__(self, runs: Iterable[ObservedRunTime] = ()) -> None:
        self._runs_by_class: dict[tuple[object, ...], deque[tuple[Millis, bool]]] = {}
        self._sorted: dict[tuple[object, ...], list[tuple[Millis, bool]]] = {}
        for run in runs:
            self.add_run(run)

    def __len__(self) -> int:
        """Return the number of runs that count."""
        return len(self._runs_by_class.get((), ()))

    def copy(self) -> RunTimes:
        """Return an independent copy."""
        other = RunTimes()
        other._runs_by_class = {level: known.copy() for level, known in self._runs_by_class.items()}
        other._sorted = {level: runs.copy() for level, runs in self._sorted.items()}
        return other

    def add_run(self, run: ObservedRunTime) -> None:
        """Add the run time of a workload, final or so far. Add the latest last."""
        seen = (run.run_time, not run.has_ended)
        for level in run.kind.levels:
            known = self._runs_by_class.setdefault(level, deque())
            known.append(seen)
            ordered = self._sorted.setdefault(level, [])
            insort(ordered, seen)
            if len(known) > KEPT * (1 if level else 5):
                del ordered[bisect_right(ordered, known.popleft()) - 1]

    def sample(self, kind: RunTimeClass, ran: Millis, dice: Random) -> Millis:
        """Return a sampled total run time of a workload that has run for `ran`.

        A sampled run that has not ended is a lower bound: the draw repeats among longer runs.
        """
        beyond = ran
        levels = [self._sorted.get(level, []) for level in kind.levels]
        for _ in range(8):
            seen = self._sample_once(levels, beyond, dice)
            if seen is None:
                break
            lasted, goes_on = seen
            if not goes_on:
                return lasted
            beyond = lasted
        # No known run is longer. Assume that it lasts about as long again.
        return Millis(min(LONGEST, int((beyond + 60_000) / max(0.02, dice.random()))))

    @staticmethod
    def _sample_once(
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


def with_running_pods(runs: RunTimes, snapshot: Snapshot, tenancy: TenantDirectory) -> RunTimes:
    """Return the known runs, plus the running workloads of a snapshot as lower bounds."""
    more = runs.copy()
    seen: set[tuple[str, str, str]] = set()
    for pod in snapshot.running:
        name = (pod.namespace, pod.user, pod.gang or pod.uid)
        if name not in seen:
            seen.add(name)
            lasted = Millis(snapshot.at - (pod.started_at or snapshot.at))
            more.add_run(
                ObservedRunTime(
                    run_time_class(pod, tenancy, snapshot.managed), lasted, has_ended=False
                )
            )
    return more


STEP = Millis(10_000)
"""Run times left are rounded up to this step, which saves most of the engine's passes."""

UNKNOWN = Millis(3_600_000)
"""Assumed run time left if run times are neither learned nor declared."""


class SampledRunTimes:
    """Run times sampled once per pod or gang, so that every simulation uses the same ones."""

    def __init__(
        self, snapshot: Snapshot, runs: RunTimes, tenancy: TenantDirectory, seed: int
    ) -> None:
        self._snapshot = snapshot
        self._runs = with_running_pods(runs, snapshot, tenancy) if runs else runs
        self._tenancy = tenancy
        self._seed = seed

    def remaining_time(self, pod: Pod, ran: Millis) -> Millis:
        """Return how much longer a pod runs; at least one step."""
        dice = Random(f"{self._seed}/{pod.namespace}/{pod.gang or pod.uid}")  # noqa: S311
        kind = run_time_class(pod, self._tenancy, self._snapshot.managed)
        lasts = self._runs.sample(kind, ran, dice) if self._runs else Millis(ran + UNKNOWN)
        if pod.max_runtime is not None:
            lasts = min(lasts, pod.max_runtime) if self._runs else pod.max_runtime
        left = max(STEP, lasts - ran)
        return Millis(-(-left // STEP) * STEP)
