"""What pods need is remembered while they are there, not for ever."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.model import Millis
from app.core.pods.roster import MOST_SHAPES
from app.sim.world import held_pod
from tests.unit.test_gangs import Term


def test_shapes_of_pods_that_are_gone_are_forgotten() -> None:
    term = Term(gpus=0)
    shapes = term.engine._roster._shapes
    stays = held_pod("stays", "a")
    term.hear(ev.PodObserved(Millis(1000), stays))
    for number in range(MOST_SHAPES):
        pod = replace(held_pod("p", "a"), max_runtime=Millis(1000 + number))
        term.hear(ev.PodObserved(Millis(1000), pod), ev.PodGone(Millis(1000), pod.uid))
        assert len(shapes) <= MOST_SHAPES + 4
    term.node(1)
    assert term.names() == ["stays"]
