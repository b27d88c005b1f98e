"""Starvation: the longest time in which a user had queued workloads and no released one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.model import Millis, UserName
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep


def longest_starving(
    timeline: Sequence[TimelineEntry], start: Millis, end: Millis
) -> Mapping[UserName, Millis]:
    """Return each user's longest unbroken time with queued workloads and no released one.

    Only the part inside [start, end] counts. A user name is one person in all tenants. Users that
    never starved are left out.
    """
    waiting: set[SimulatedWorkload] = set()
    held: Counter[UserName] = Counter()
    queued: Counter[UserName] = Counter()
    since: dict[UserName, Millis] = {}
    longest: dict[UserName, Millis] = {}

    def close(user: UserName, at: Millis) -> None:
        stretch = min(at, end) - max(since.pop(user), start)
        if stretch > longest.get(user, 0):
            longest[user] = Millis(stretch)

    for moment in timeline:
        work, step = moment.work, moment.step
        user = work.user
        if step is TimelineStep.SUBMITTED or step is TimelineStep.EVICTED:
            waiting.add(work)
            queued[user] += 1
            held[user] -= step is TimelineStep.EVICTED
        elif step is TimelineStep.RELEASED:
            held[user] += 1
            if work in waiting:  # workloads that run at the start never waited
                waiting.remove(work)
                queued[user] -= 1
        elif step is TimelineStep.ENDED:
            held[user] -= 1
        if queued[user] > 0 and not held[user]:
            since.setdefault(user, moment.at)
        elif user in since:
            close(user, moment.at)
    for user in list(since):
        close(user, end)
    return longest
