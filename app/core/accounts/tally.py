"""Sums of runs: who used how much, by whatever is asked for, exact. Pure.

Amounts are base units times milliseconds, whole numbers, until they are written as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from app.core.errors import InvalidInput
from app.core.fair.runs import NO_NODE, Run
from app.core.model import Millis, NodeName, Resource
from app.core.resources import CPU

MOST_ROWS = 100_000


class By(Enum):
    """What use can be told apart by."""

    TENANT = "tenant"
    USER = "user"
    POOL = "pool"
    NODE = "node"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class Row:
    """What was used by one of each that was asked for; `at`: in the step that begins then."""

    names: tuple[str, ...]
    at: Millis
    spent: Mapping[Resource, int]


class Tally:
    """Adds up what runs used from `begin` to `end`; with a `step`, for each step by itself."""

    def __init__(
        self,
        by: Sequence[By],
        begin: Millis,
        end: Millis,
        step: Millis | None = None,
        most: int = MOST_ROWS,
    ) -> None:
        self._names = [_NAMES[each] for each in by]
        self._stays = _stays if By.NODE in by else _whole
        self._begin = begin
        self._end = end
        self._step = step or Millis(max(1, end - begin))
        self._most = most
        self._sums: dict[tuple[tuple[str, ...], Millis], dict[Resource, int]] = {}

    def add(self, run: Run) -> int:
        """Count a run, each once; return how many steps that took.

        Raises InvalidInput for more rows than anybody reads.
        """
        until = self._end if run.end is None else min(run.end, self._end)
        if until <= max(run.begin, self._begin):
            return 0
        steps = 0
        for node, begin, end in self._stays(run, until):
            names = tuple([name(run, node) for name in self._names])
            for at, span in self._spans(begin, end):
                self._count(names, at, run, span)
                steps += 1
        return steps

    def rows(self) -> list[Row]:
        """Return the sums, by names, then by time."""
        return [Row(*key, self._sums[key]) for key in sorted(self._sums)]

    def _count(self, names: tuple[str, ...], at: Millis, run: Run, span: int) -> None:
        sums = self._sums.get((names, at))
        if sums is None:
            if len(self._sums) >= self._most:
                raise InvalidInput(
                    f"This is more than {self._most} rows: ask for a shorter time, a longer step, "
                    "fewer names in by, or one tenant."
                )
            sums = self._sums[names, at] = {}
        for resource, amount in run.amounts.items():
            sums[resource] = sums.get(resource, 0) + amount * span

    def _spans(self, begin: Millis, end: Millis) -> Iterator[tuple[Millis, int]]:
        """Return which steps a time goes through, and how long each."""
        begin, end = max(begin, self._begin), min(end, self._end)
        while begin < end:
            at = begin - (begin - self._begin) % self._step
            following = min(end, at + self._step)
            yield Millis(at), following - begin
            begin = Millis(following)


def seconds(resource: Resource, spent: int) -> str:
    """Return resource-seconds as an exact decimal, in the unit in which people count it."""
    digits = 6 if resource == CPU else 3
    whole, rest = divmod(abs(spent), 10**digits)
    text = f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".")
    return f"-{text}" if spent < 0 else text


_NAMES: Mapping[By, Callable[[Run, NodeName], str]] = {
    By.TENANT: lambda run, node: run.tenant,
    By.USER: lambda run, node: run.user,
    By.POOL: lambda run, node: run.pool,
    By.NODE: lambda run, node: node,
    By.WORKLOAD: lambda run, node: f"{run.namespace}/{run.workload}",
}

Stays = Iterator[tuple[NodeName, Millis, Millis]]


def _whole(run: Run, until: Millis) -> Stays:
    """Return a run as one, wherever it was."""
    yield NO_NODE, run.begin, until


def _stays(run: Run, until: Millis) -> Stays:
    """Return where a run was, from when to when: on no node until it was bound."""
    bound = until if run.bound is None else max(run.begin, min(run.bound, until))
    yield NO_NODE, run.begin, bound
    yield run.node, bound, until
