"""Exact sums of usage records, grouped by tenant, user, pool, node or workload.

Amounts are base units times milliseconds, as integers, until they are written as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from app.core.errors import InvalidInput
from app.core.fairshare.usage_record import NO_NODE, UsageRecord
from app.core.model import Millis, NodeName, Resource
from app.core.quantities import CPU

MOST_ROWS = 100_000


class GroupBy(Enum):
    """Criteria by which usage is grouped."""

    TENANT = "tenant"
    USER = "user"
    POOL = "pool"
    NODE = "node"
    WORKLOAD = "workload"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Usage of one group, in the step that begins `at`."""

    names: tuple[str, ...]
    at: Millis
    spent: Mapping[Resource, int]


class UsageAggregator:
    """Sums usage records from `begin` to `end`; with a `step`, for each step separately."""

    def __init__(
        self,
        by: Sequence[GroupBy],
        begin: Millis,
        end: Millis,
        step: Millis | None = None,
        most: int = MOST_ROWS,
    ) -> None:
        self._names = [_NAMES[each] for each in by]
        self._split_by_node = _stays if GroupBy.NODE in by else _whole
        self._begin = begin
        self._end = end
        self._step = step or Millis(max(1, end - begin))
        self._most = most
        self._sums: dict[tuple[tuple[str, ...], Millis], dict[Resource, int]] = {}

    def add(self, run: UsageRecord) -> int:
        """Add a usage record. Call it once per record. Return the number of processed steps.

        Raises InvalidInput if there are more rows than `most`.
        """
        until = self._end if run.end is None else min(run.end, self._end)
        if until <= max(run.begin, self._begin):
            return 0
        steps = 0
        for node, begin, end in self._split_by_node(run, until):
            names = tuple([name(run, node) for name in self._names])
            for at, span in self._spans(begin, end):
                self._count(names, at, run, span)
                steps += 1
        return steps

    def rows(self) -> list[UsageSum]:
        """Return the sums, by names, then by time."""
        return [UsageSum(*key, self._sums[key]) for key in sorted(self._sums)]

    def _count(self, names: tuple[str, ...], at: Millis, run: UsageRecord, span: int) -> None:
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
        """Yield the steps that a time span covers, and the duration within each."""
        begin, end = max(begin, self._begin), min(end, self._end)
        while begin < end:
            at = begin - (begin - self._begin) % self._step
            following = min(end, at + self._step)
            yield Millis(at), following - begin
            begin = Millis(following)


def format_resource_seconds(resource: Resource, spent: int) -> str:
    """Return resource-seconds as an exact decimal, in the unit in which people count it."""
    digits = 6 if resource == CPU else 3
    whole, rest = divmod(abs(spent), 10**digits)
    text = f"{whole}.{rest:0{digits}}".rstrip("0").rstrip(".")
    return f"-{text}" if spent < 0 else text


_NAMES: Mapping[GroupBy, Callable[[UsageRecord, NodeName], str]] = {
    GroupBy.TENANT: lambda run, node: run.tenant,
    GroupBy.USER: lambda run, node: run.user,
    GroupBy.POOL: lambda run, node: run.pool,
    GroupBy.NODE: lambda run, node: node,
    GroupBy.WORKLOAD: lambda run, node: f"{run.namespace}/{run.workload}",
}

Stays = Iterator[tuple[NodeName, Millis, Millis]]


def _whole(run: UsageRecord, until: Millis) -> Stays:
    """Yield a usage record as one part, without its node."""
    yield NO_NODE, run.begin, until


def _stays(run: UsageRecord, until: Millis) -> Stays:
    """Yield the parts of a usage record: without a node until it was bound, then on its node."""
    bound = until if run.bound is None else max(run.begin, min(run.bound, until))
    yield NO_NODE, run.begin, bound
    yield run.node, bound, until
