"""Utilisation figures of one arm, computed from the observed times and nodes of its pods.

Pure, and independent of Fairgate and of the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.sim.replay.machines import Machine
from loadtest.openb_sample import Arrival, Shape, times

SEVERAL = 2
"""Smallest number of devices of a multi-device pod."""


@dataclass(slots=True)
class Seen:
    """Observed times of one pod, in seconds since the start of the arm; None if not observed."""

    created: float | None = None
    opened: float | None = None
    """First time without a gate."""

    bound: float | None = None
    ended: float | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one arm.

    `used`: bound device-seconds, as a part of those that existed and were requested.
    `unusable`: average part of all devices that is free but unusable for a random pod of the load.
    `completed`: ended pods per minute. `wait`, `wait_several`: mean seconds until bound, of all
    pods and of multi-device pods; a pod that was never bound counts with its wait so far.
    `after_gate`: the part of `wait` in which pods had neither gate nor node.
    """

    used: float
    unusable: float
    completed: float
    wait: float
    wait_several: float
    after_gate: float
    never_bound: int


def sum_up(
    load: Sequence[Arrival],
    seen: Sequence[Seen],
    fleet: Sequence[Machine],
    span: float,
    horizon: float,
) -> Outcome:
    """Return the figures of one arm: use in the first `span` seconds, waits until `horizon`."""
    state = _Cluster(fleet, load)
    before = 0.0
    for at, number, step in _steps(seen, span):
        state.pass_time(at - before)
        before = at
        state.change(load[number].shape, step, seen[number].node)
    state.pass_time(span - before)
    ended = sum(one.ended is not None and one.ended <= span for one in seen)
    waits = [
        (each.shape.gpus, _until(one.created, one.bound, horizon))
        for each, one in zip(load, seen, strict=True)
        if one.created is not None
    ]
    return Outcome(
        used=state.bound_seconds / state.wanted_seconds if state.wanted_seconds else 0.0,
        unusable=state.unusable_seconds / (state.devices * span),
        completed=ended * 60 / span,
        wait=_mean([wait for _, wait in waits]),
        wait_several=_mean([wait for gpus, wait in waits if gpus >= SEVERAL]),
        after_gate=_mean(
            [_until(one.opened, one.bound, horizon) for one in seen if one.created is not None]
        ),
        never_bound=sum(one.bound is None or one.bound > horizon for one in seen),
    )


_COME, _BIND, _END = range(3)


def _steps(seen: Sequence[Seen], until: float) -> list[tuple[float, int, int]]:
    """Return time, pod number and kind of each step, in order of time."""
    found = [
        (at, number, step)
        for number, one in enumerate(seen)
        for step, at in ((_COME, one.created), (_BIND, one.bound), (_END, one.ended))
        if at is not None and at <= until
    ]
    return sorted(found, key=lambda each: (each[0], each[2], each[1]))


class _Cluster:
    """Free capacity of each machine while the steps are played, and sums over time."""

    def __init__(self, fleet: Sequence[Machine], load: Sequence[Arrival]) -> None:
        self._machines = {machine.name: machine for machine in fleet}
        self._free = {m.name: [m.gpus, m.cpu, m.memory] for m in fleet}
        self._kinds = Counter(each.shape for each in load)
        self.devices = sum(machine.gpus for machine in fleet)
        self._unusable = {name: self._lost(name) for name in self._machines}
        self._bound = self._waiting = 0
        self.bound_seconds = self.wanted_seconds = self.unusable_seconds = 0.0

    def pass_time(self, seconds: float) -> None:
        """Add the current state to the sums for this time."""
        self.bound_seconds += self._bound * seconds
        self.wanted_seconds += min(self.devices, self._bound + self._waiting) * seconds
        self.unusable_seconds += sum(self._unusable.values()) * seconds

    def change(self, shape: Shape, step: int, node: str) -> None:
        """Apply one step of one pod."""
        if step == _COME:
            self._waiting += shape.gpus
            return
        sign = 1 if step == _BIND else -1
        self._bound += sign * shape.gpus
        if step == _BIND:
            self._waiting -= shape.gpus
        amounts = (shape.gpus, shape.cpu, shape.memory)
        self._free[node] = [
            free - sign * amount for free, amount in zip(self._free[node], amounts, strict=True)
        ]
        self._unusable[node] = self._lost(node)

    def _lost(self, node: str) -> float:
        """Return the mean free devices of a machine that a random pod allowed there cannot use."""
        machine, (gpus, cpu, memory) = self._machines[node], self._free[node]
        able = {
            shape: count
            for shape, count in self._kinds.items()
            if not shape.models or machine.model in shape.models
        }
        if not able or gpus <= 0:
            return 0.0
        lost = sum(
            count * (gpus - shape.gpus * times(shape, machine, gpus, cpu, memory))
            for shape, count in able.items()
        )
        return lost / sum(able.values())


def _until(since: float | None, to: float | None, horizon: float) -> float:
    """Return the seconds between two times, up to the horizon; 0 if the first is None."""
    if since is None:
        return 0.0
    return max(0.0, (horizon if to is None else min(to, horizon)) - since)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def averages(outcomes: Mapping[str, Sequence[Outcome]], figure: str) -> dict[str, list[float]]:
    """Return one figure of every arm, one value per round."""
    return {arm: [float(getattr(each, figure)) for each in of] for arm, of in outcomes.items()}
