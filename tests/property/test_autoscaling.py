"""A pool is never allocated beyond the capacity it may grow to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.model import NodeName
from tests.support.autoscaled_pool import GPU, TIMEOUT, Farm
from tests.support.depth import cases

MOST = 32

steps = st.lists(
    st.one_of(
        st.tuples(st.just("pod"), st.integers(1, 8)),
        st.tuples(st.just("gang"), st.integers(2, 5)),
        st.tuples(st.just("node"), st.integers(1, 4)),
        st.tuples(st.just("loss"), st.integers(0, 4)),
        st.tuples(st.just("end"), st.integers(0, 30)),
        st.tuples(st.just("bind"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.sampled_from([1000, TIMEOUT // 2, TIMEOUT])),
    ),
    max_size=25,
)


class Random(Farm):
    """Checks the usage at every release."""

    def __init__(self) -> None:
        self.count = 0
        super().__init__(MOST)

    def hear(self, event: ev.Event) -> None:
        before = len(self.where)
        super().hear(event)
        if len(self.where) > before:
            pool = self.pool()
            used = pool.used.get(GPU, 0)
            assert used <= max(MOST, pool.capacity.get(GPU, 0))
            placed = [name for name, node in self.where.items() if node is not None]
            assert pool.pods_awaiting_nodes <= len(self.pods) - len(set(placed) & self.pods.keys())

    def step(self, what: str, number: int) -> None:
        """Apply one random change."""
        self.count += 1
        released = [name for name in self.where if name in self.pods]
        waiting = [name for name in released if self.pods[name].node is None]
        match what:
            case "pod":
                self.create(f"p{self.count}", number)
            case "gang":
                for member in range(number):
                    name = f"g{self.count}-{member}"
                    self.create(name, 6, gang=f"g{self.count}", gang_size=number)
            case "node":
                self.add(number)
            case "loss":
                self.hear(ev.NodeGone(self.at, NodeName(f"auto-{number}")))
            case "end" if released:
                self.delete(released[number % len(released)])
            case "bind" if waiting:
                name = waiting[number % len(waiting)]
                view = self.engine.queries.released_view(self.pods[name].uid)
                if view is not None and view.node is not None:
                    self.bind(name, view.node)
            case "wait":
                self.wait(number)
            case _:
                pass


@settings(max_examples=cases(40, 100))
@given(steps)
def test_releases_stay_within_the_maximum_size_of_the_pool(script: list[tuple[str, int]]) -> None:
    farm = Random()
    for what, number in script:
        farm.step(what, number)


@settings(max_examples=cases(40, 100))
@given(steps)
def test_the_same_events_give_the_same_places(script: list[tuple[str, int]]) -> None:
    one, other = Random(), Random()
    for what, number in script:
        one.step(what, number)
        other.step(what, number)
    assert one.where == other.where
    assert one.evicted == other.evicted
