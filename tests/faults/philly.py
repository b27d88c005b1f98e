"""A window of the Philly log in compressed time, and its simulation.

Only jobs submitted in the window are played, on an empty cluster. The module is pure except for
reading the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.model import Millis, Node, NodeName, Resource, Tenant, TenantName, UserName
from app.core.policy import FIVE_MINUTES, FOUR_HOURS, Policy
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import VirtualCluster
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep
from app.sim.metrics.starvation import longest_starving
from app.sim.metrics.waits import waits_of
from app.sim.replay.trace_files import DEVICE, read_log, tenants_of

HOUR = 3_600_000
STARVED = {"1 h": HOUR, "4 h": 4 * HOUR, "12 h": 12 * HOUR}
"""Durations in time of the log."""

ROOM_OF_NODE = 110
GPUS_OF_NODE = 8


@dataclass(frozen=True)
class Window:
    """A part of the log, its speed-up and its number of GPUs.

    `start` and `span` are in seconds of the log. If `tenant` is None, all tenants are played. At
    most `first` jobs and at most `most` seconds are played.
    """

    start: float
    span: float
    tenant: str | None
    speed: float
    gpus: int
    first: int | None = None
    most: float | None = None

    @property
    def until(self) -> Millis:
        """The end of the play."""
        seconds = self.span / self.speed
        return Millis(int(1000 * (seconds if self.most is None else min(self.most, seconds))))

    @property
    def policy(self) -> Policy:
        """The default Policy with compressed times, in whole seconds as in a Policy object."""
        return Policy(
            reserve_after=self._shorter(FIVE_MINUTES),
            half_life=self._shorter(FOUR_HOURS),
            min_runtime=self._shorter(FIVE_MINUTES),
        )

    def _shorter(self, time: Millis) -> Millis:
        return Millis(1000 * max(1, round(time / self.speed / 1000)))

    def works(self, log: Path) -> tuple[SimulatedWorkload, ...]:
        """Return the jobs of the window in order of arrival."""
        found = []
        for work in read_log(log, tenant=self.tenant).works:
            at = (work.at / 1000 - self.start) * 1000 / self.speed
            if 0 <= at < self.until and work.duration is not None:
                runs = Millis(max(1, int(work.duration / self.speed)))
                found.append(replace(work, at=Millis(int(at)), duration=runs))
        return tuple(found[: self.first])


def nodes(gpus: int) -> int:
    """Return the number of nodes with 8 GPUs that these GPUs need."""
    return -(-gpus // GPUS_OF_NODE)


def simulate(window: Window, works: Sequence[SimulatedWorkload]) -> list[TimelineEntry]:
    """Play the jobs in virtual time, with the same nodes and policy."""
    room = {DEVICE: GPUS_OF_NODE, PODS: ROOM_OF_NODE}
    world = VirtualCluster(
        ManagedResources((DEVICE,)),
        [
            Node(NodeName(f"gpu-node-{number}"), {}, room, ready=True)
            for number in range(nodes(window.gpus))
        ],
        tenants(works).values(),
        policy=window.policy,
    )
    for work in works:
        world.add_workload(work)
    world.advance_to(window.until)
    return world.timeline


def tenants(works: Sequence[SimulatedWorkload]) -> Mapping[TenantName, Tenant]:
    """Return the tenants of the jobs, each with a namespace of the same name."""
    return tenants_of(works)


@dataclass(frozen=True)
class Account:
    """The result of one user: jobs, device-seconds held, mean wait in seconds."""

    jobs: int
    held: float
    wait: float


@dataclass(frozen=True)
class Result:
    """The result of a window by user. `starving` is the longest starvation in ms of the log."""

    users: Mapping[UserName, Account]
    starving: Mapping[UserName, int]
    used: float

    def starved(self, name: str) -> frozenset[UserName]:
        """Return the users that starved for at least the duration named in `STARVED`."""
        return frozenset(user for user, ms in self.starving.items() if ms >= STARVED[name])


def sum_up(window: Window, timeline: Sequence[TimelineEntry], gpus: int) -> Result:
    """Return the result of a timeline, computed the same way for cluster and simulator."""
    held = _held(timeline, window.until)
    by_user: dict[UserName, list[float]] = defaultdict(list)
    for work, wait in waits_of(timeline, Millis(0), window.until).items():
        by_user[work.user].append(wait)
    stretches = longest_starving(timeline, Millis(0), window.until)
    return Result(
        {
            user: Account(len(waits), held.get(user, 0.0), sum(waits) / len(waits))
            for user, waits in sorted(by_user.items())
        },
        {user: int(each * window.speed) for user, each in stretches.items()},
        sum(held.values()) * 1000 / (gpus * window.until),
    )


def _held(timeline: Sequence[TimelineEntry], until: Millis) -> dict[UserName, float]:
    """Return the device-seconds each user held until the end."""
    since: dict[SimulatedWorkload, Millis] = {}
    held: dict[UserName, float] = defaultdict(float)

    def close(work: SimulatedWorkload, at: int) -> None:
        devices = work.pods * work.demand.get(Resource(DEVICE), 0)
        held[work.user] += devices * max(0, min(at, until) - since.pop(work)) / 1000

    for moment in timeline:
        if moment.step is TimelineStep.RELEASED:
            since[moment.work] = moment.at
        elif moment.step in (TimelineStep.ENDED, TimelineStep.EVICTED) and moment.work in since:
            close(moment.work, moment.at)
    for work in list(since):
        close(work, until)
    return held


def differences(
    here: Result, there: Result, capacity: float, *, part: float = 0.1, least: float = 0.001
) -> list[str]:
    """Return the differences between two plays of one window, one sentence each.

    The starved users must be equal. The device-seconds of a user must agree within `part`, or
    differ by less than `least` of `capacity` (device-seconds). Starting and ending a pod takes most
    of the time of a half-second job.
    """
    found = []
    for name in STARVED:
        only_one = here.starved(name) ^ there.starved(name)
        found += [
            f"{user} starved for {name} {_both(user, here, there)}" for user in sorted(only_one)
        ]
    nothing = Account(0, 0.0, 0.0)
    for user in sorted({*here.users, *there.users}):
        ours, theirs = here.users.get(user, nothing).held, there.users.get(user, nothing).held
        apart = abs(ours - theirs)
        if apart > part * max(ours, theirs) and apart > least * capacity:
            found.append(f"{user} held {ours:.0f} device-seconds, in the simulator {theirs:.0f}")
    return found


def _both(user: UserName, here: Result, there: Result) -> str:
    ours, theirs = (each.starving.get(user, 0) / HOUR for each in (here, there))
    where = "and not in the simulator" if ours > theirs else "in the simulator only"
    return f"{where}: {ours:.2f} h, there {theirs:.2f} h"
