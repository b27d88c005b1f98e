"""Equivalence classes are stored only while their pods exist."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.model import Millis
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.gang_term import Term


def test_shapes_of_pods_that_are_gone_are_forgotten() -> None:
    term = Term(gpus=0)
    shapes = term.engine._registry._equivalence_table
    stays = held_pod("stays", "a")
    term.hear(ev.PodObserved(Millis(1000), stays))
    for number in range(100):
        pod = replace(held_pod("p", "a"), max_runtime=Millis(1000 + number))
        term.hear(ev.PodObserved(Millis(1000), pod), ev.PodGone(Millis(1000), pod.uid))
        assert len(shapes) <= 4
    term.node(1)
    assert term.names() == ["stays"]
