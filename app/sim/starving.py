"""Who starved: had work waiting and held nothing, and for how long without a break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.model import Millis, UserName
from app.sim.work import Moment, Step, Work


def longest_starving(
    timeline: Sequence[Moment], start: Millis, end: Millis
) -> Mapping[UserName, Millis]:
    """Return each user's longest unbroken stretch with work queued and none released.

    Only the part of a stretch inside [start, end] counts. One name is one person, in whichever
    tenants the work was submitted. Users who never starved are left out.
    """
    waiting: set[Work] = set()
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
        if step is Step.SUBMITTED or step is Step.EVICTED:
            waiting.add(work)
            queued[user] += 1
            held[user] -= step is Step.EVICTED
        elif step is Step.RELEASED:
            held[user] += 1
            if work in waiting:  # what was in place before the start never waited
                waiting.remove(work)
                queued[user] -= 1
        else:
            held[user] -= 1
        if queued[user] > 0 and not held[user]:
            since.setdefault(user, moment.at)
        elif user in since:
            close(user, moment.at)
    for user in list(since):
        close(user, end)
    return longest
