"""A claim that many waiting pods share, and that changes all the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import events as ev
from app.core.effects import Effect, Release, WakeAt
from app.core.explain.reasons import Rule
from app.core.lifecycle.claim_charges import ClaimCharges
from app.core.lifecycle.claim_users import ClaimUse
from app.core.lifecycle.update_pauses import FEW_PODS, REST_MS
from app.core.model import Millis, Pod, Uid
from app.core.quantities import CPU, PODS
from tests.unit.core.lifecycle.test_claim_charges import GPU, Bench, claim, gpus, pod

COUNT = 2 * FEW_PODS
PAUSE = 2 * REST_MS * COUNT
"""The pause after a change of a claim of `COUNT` pods, which have no other claim."""


class ChangingClaims(Bench):
    """Many pods that wait for more devices than there are, and time that passes only in `wait`."""

    def __init__(self, *claims: str) -> None:
        super().__init__()
        self.put(*(claim(each, gpus(9)) for each in claims))
        assert self.see(*(pod(f"p{n}", *claims) for n in range(COUNT))) == []
        self.wait(10 * PAUSE)

    def change(self, name: str, devices: int) -> list[Effect]:
        known = self.claims["a", name]
        changed = replace(known, requests=(gpus(devices),))
        return self.run(ev.ClaimObserved(self.at, changed))

    def run(self, *news: ev.NewsEvent) -> list[Effect]:
        return [e for each in (*news, ev.Pass(self.at)) for e in self.engine.handle(each)]

    def wait(self, millis: int) -> list[Effect]:
        self.at = Millis(self.at + millis)
        return self.run()


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> list[Uid]:
    """Return a list to which each computed charge of a pod is added."""
    found, charge_pod = list[Uid](), ClaimCharges.charge_pod

    def recorded(self: ClaimCharges, each: Pod, use: ClaimUse | None) -> Pod:
        found.append(each.uid)
        return charge_pod(self, each, use)

    monkeypatch.setattr(ClaimCharges, "charge_pod", recorded)
    return found


@pytest.mark.parametrize("claims", [("c",), ("c", "d", "e", "f")])
def test_changes_in_a_pause_are_charged_at_its_end(
    charges: list[Uid], claims: tuple[str, ...]
) -> None:
    """Claims of the same pods that change in turn are no way around the pauses."""
    cluster = ChangingClaims(*claims)
    charges.clear()
    turns = 20
    for turn in range(turns):
        for name in claims:
            cluster.change(name, 10 + turn)
            cluster.wait(PAUSE // (turns + 1))
    assert len(charges) <= 2 * COUNT * len(claims)
    charges.clear()
    cluster.wait(PAUSE * len(claims))
    assert set(charges) == {Uid(f"a/p{n}") for n in range(COUNT)}


def test_no_pod_is_released_until_its_claim_is_charged_as_it_is() -> None:
    cluster = ChangingClaims("c")
    cluster.change("c", 10)
    assert cluster.rule("p1") is Rule.NO_POOL
    cluster.change("c", 1)
    effects = cluster.change("c", 2)
    assert not [e for e in effects if isinstance(e, Release)]
    assert cluster.rule("p1") is Rule.CLAIM
    assert "changes often" in (cluster.engine.queries.wait_reason(Uid("a/p1")) or "")
    assert not [e for e in cluster.wait(PAUSE - 1) if isinstance(e, Release)]
    first, *others = [e.intent for e in cluster.wait(1) if isinstance(e, Release)]
    assert first.demand[GPU] == 2
    assert others
    assert not any(GPU in each.demand for each in others)


def test_the_leader_wakes_at_the_end_of_a_pause() -> None:
    cluster = ChangingClaims("c")
    cluster.change("c", 10)
    effects = cluster.change("c", 1)
    assert [e.at for e in effects if isinstance(e, WakeAt)] == [cluster.at + PAUSE]


def test_a_released_pod_is_charged_for_each_change_at_once() -> None:
    cluster = Bench()
    cluster.put(claim("c", gpus()))
    assert cluster.see(pod("r", "c")) == ["r"]
    large = {CPU: 65_000, PODS: 1}
    cluster.see(*(pod(f"p{n}", "c", container_requests=large) for n in range(COUNT)))
    for devices in (2, 3, 4):
        changed = replace(cluster.claims["a", "c"], requests=(gpus(devices),))
        for event in (ev.ClaimObserved(cluster.at, changed), ev.Pass(cluster.at)):
            cluster.engine.handle(event)
        assert cluster.used == {GPU: devices}
