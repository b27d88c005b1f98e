"""Gangs stay consistent whatever changes between two cycles.

The leader gathers events, so a cycle may follow several changes of one gang.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from app.core import events as ev
from app.core.model import Millis, Phase, Pod, Tenant, TenantName, UserName
from app.core.podspec.pod_groups import GangDeclaration
from app.core.policy import Mode, Policy
from tests.support.depth import cases
from tests.support.gang_driver import MINUTE, Lead, member

TEAM, USER = TenantName("ns.a"), UserName("user")
GANGS = ("ga", "gb")


class Changes:
    """Draws changes of the pods and gangs of one leader."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.lead = Lead(gpus=self.dice.randint(0, 6))
        self.lead.runs = self.dice.random() < 0.5
        self.epoch, self.made = 8, 0
        self.groups: dict[str, GangDeclaration] = {}

    def play(self, batches: int) -> None:
        for _ in range(batches):
            drawn = [self.draw() for _ in range(self.dice.randint(1, 5))]
            self.lead.hear(*(event for events in drawn for event in events))
            if self.dice.random() < 0.2:
                self.lead.wait(self.dice.choice((1000, MINUTE, 11 * MINUTE)))
            self.check()

    def draw(self) -> list[ev.Event]:
        pods = list(self.lead.pods.values())
        if not pods or self.dice.random() < 0.35:
            return [self.create()]
        if self.dice.random() < 0.2:
            return [self.state()]
        if self.dice.random() < 0.1:
            return self.environment()
        return [self.change(self.dice.choice(pods))]

    def create(self) -> ev.Event:
        self.made += 1
        gang = self.dice.choice(GANGS)
        size = 0 if gang in self.groups else self.dice.randint(1, 4)
        pod = member(self.made, size, gang, gang_min_count=self.dice.choice((0, 0, 1, 2)))
        pod = replace(pod, restart_gang=self.dice.random() < 0.2)
        return self.observed(pod)

    def state(self) -> ev.Event:
        """State the numbers of a gang in an object."""
        gang, size = self.dice.choice(GANGS), self.dice.randint(1, 5)
        group = GangDeclaration(
            "a",
            gang,
            size,
            min_count=self.dice.choice((0, 1, size)),
            succeeded_count=self.dice.randint(0, 2),
            required_successes=self.dice.choice((None, size, 2 * size)),
        )
        self.groups[gang] = group
        return ev.GroupObserved(self.lead.at, group)

    def environment(self) -> list[ev.Event]:
        at = self.lead.at
        match self.dice.randrange(3):
            case 0:
                mode = self.dice.choice((Mode.OBSERVE, Mode.ENFORCE))
                return [ev.PolicyObserved(at, Policy(mode=mode))]
            case 1:
                weight = self.dice.randint(1, 3)
                return [ev.TenantObserved(at, Tenant(TEAM, Millis(0), weight=weight))]
            case _:
                self.epoch += 1
                again = ev.LeadershipGained(at, self.epoch)
                return [ev.LeadershipLost(at), again, ev.StoreReady(at)]

    def change(self, pod: Pod) -> ev.Event:
        what = self.dice.randrange(6)
        if what == 0 or pod.phase is Phase.FINISHED:
            del self.lead.pods[pod.uid]
            return ev.PodGone(self.lead.at, pod.uid)
        if what == 1:
            return self.observed(replace(pod, terminating=True))
        if what == 2 and pod.gates:
            return self.observed(replace(pod, gang=self.dice.choice((*GANGS, ""))))
        if pod.gates:
            return self.observed(replace(pod, gang_size=self.dice.randint(1, 4)))
        if what == 3:
            failed = self.dice.random() < 0.5
            return self.observed(replace(pod, phase=Phase.FINISHED, failed=failed))
        return self.observed(replace(pod, phase=Phase.RUNNING))

    def observed(self, pod: Pod) -> ev.Event:
        self.lead.pods[pod.uid] = pod
        return ev.PodObserved(self.lead.at, pod)

    def check(self) -> None:
        """The queue has each waiting pod once, and no other."""
        queries = self.lead.engine.queries
        rows = list(queries.waiting_rows(TEAM, USER, None))
        uids = [row.ref.uid for row in rows]
        pods = self.lead.pods.items()
        held = {uid for uid, pod in pods if pod.gates and not pod.terminating}
        assert len(uids) == len(set(uids))
        assert set(uids) <= held
        assert sum(row.pods for row in rows) == len(held)
        assert len(list(queries.waiting_workloads(TEAM, USER))) == len(rows)


@pytest.mark.parametrize("seed", range(cases(60, 3000)))
def test_each_waiting_pod_is_in_the_queue_once(seed: int) -> None:
    changes = Changes(seed)
    changes.play(40)
    changes.lead.room(500)
    for _ in range(3):
        changes.lead.wait(MINUTE)
        changes.check()


def test_many_of_the_pods_are_released() -> None:
    released = 0
    for seed in range(20):
        changes = Changes(seed)
        changes.play(40)
        released += len(changes.lead.released)
    assert released > 100
