"""Nodes with more pods than fit, because pods that Fairgate does not manage may use any node."""

from __future__ import annotations

from dataclasses import replace

from app.core import events as ev
from app.core.effects import Release
from app.core.model import NodeName, ReleaseOutcome, Uid, UnmanagedPod
from app.core.quantities import CPU, PODS
from tests.support.autoscaled_pool import AUTO, GPU, Farm
from tests.support.bypass_watch import Watch

NODE = {GPU: 8, CPU: 4000, PODS: 110}


class Slow(Farm):
    """The scheduler binds no pod, so released pods stay on their expected nodes."""

    def hear(self, event: ev.Event) -> None:
        Watch.hear(self, event)
        for order in [each for each in self.effects if isinstance(each, Release)]:
            name = order.intent.ref.name
            self.where[name] = order.node
            self.pods[name] = replace(
                self.pods[name], gates=(), release_annotation=order.stamp, pool=AUTO
            )
            self.hear(ev.ReleaseAnswered(self.at, self.pods[name].uid, ReleaseOutcome.RELEASED))
            self.see(self.pods[name])

    def crowd(self) -> None:
        """Add a pod that names its node and requests more than the node has."""
        demand = {CPU: 5000, PODS: 1}
        self.hear(
            ev.UnmanagedPodObserved(self.at, UnmanagedPod(Uid("x"), NodeName("auto-1"), demand))
        )

    def expected(self, name: str) -> NodeName | None:
        view = self.engine.queries.released_view(self.pods[name].uid)
        assert view is not None
        return view.node


def slow() -> Slow:
    farm = Slow(0, nodes=0)
    farm.add(1, NODE)
    return farm


def test_overfull_node_without_expected_pods_does_not_block_releases() -> None:
    farm = slow()
    farm.crowd()
    farm.add(1, {**NODE, CPU: 3000})
    farm.add(2, NODE)
    farm.create("p", 8)
    assert list(farm.where) == ["p"]


def test_pod_stays_on_overfull_node_if_it_uses_none_of_the_scarce_resource() -> None:
    farm = slow()
    farm.create("p", 1)
    farm.crowd()
    assert farm.expected("p") == "auto-1"


def test_pod_leaves_overfull_node_if_it_uses_the_scarce_resource() -> None:
    farm = slow()
    farm.create("p", 1, demand={GPU: 1, CPU: 1000, PODS: 1})
    assert farm.expected("p") == "auto-1"
    farm.add(2, NODE)
    farm.crowd()
    assert farm.expected("p") == "auto-2"
