"""No pod is lost, for any behaviour of the scheduler and any number of leader changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.model import Uid
from app.core.policy import Policy
from tests.support.binding_cluster import FULL, BindingCluster
from tests.support.depth import cases

WINDOW = 4
POLICY = Policy(max_unbound=WINDOW, max_unowned_unbound=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("owned"), st.integers(1, 6)),
        st.tuples(st.just("bare"), st.integers(1, 6)),
        st.tuples(st.just("bind"), st.integers(1, 4)),
        st.tuples(st.just("judge"), st.integers(1, 4)),
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 40, 200, 700])),
        st.tuples(st.just("lead"), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


class Script:
    """Plays steps, and checks the invariants after each step."""

    def __init__(self) -> None:
        self.yard = BindingCluster(policy=POLICY)
        self.number, self.epoch = 0, 7
        self.bound: list[int] = []

    def play(self, step: tuple[str, int]) -> None:
        kind, count = step
        yard = self.yard
        before = yard.now
        match kind:
            case "owned" | "bare":
                self.number += 1
                owner = "job" if kind == "owned" else ""
                yard.create(count, f"{kind}{self.number}", owner=owner)
            case "bind":
                those = yard.unbound()[:count]
                self.bound += [yard.now] * len(those)
                yard.bind(those)
            case "judge":
                yard.judge([p for p in yard.unbound() if p.scheduler_condition is None][:count])
            case "wait":
                yard.wait(count * 1000)
            case _:
                self.epoch += 1
                yard.hear(ev.LeadershipLost(yard.at))
                yard.lead(self.epoch)
        self.check(before)

    def check(self, before: int) -> None:
        silent = [p for p in self.yard.unbound() if p.scheduler_condition is None]
        lately = sum(at >= before - 11_000 for at in self.bound)
        assert len(silent) <= max(WINDOW, self.most, 2 * lately)
        self.most = len(silent)
        gone = [self.yard.pods[Uid(f"a/{name}")] for name in self.yard.expelled]
        assert all(pod.owner and pod.scheduler_condition == FULL for pod in gone)

    most = 0


@settings(max_examples=cases(25, 60))
@given(STEPS)
def test_no_release_beyond_the_window_and_no_eviction_without_a_verdict(
    steps: list[tuple[str, int]],
) -> None:
    script = Script()
    for step in steps:
        script.play(step)


@settings(max_examples=25)
@given(STEPS, st.integers(1, 25))
def test_everything_is_released_once_the_scheduler_works_again(
    steps: list[tuple[str, int]], each: int
) -> None:
    script = Script()
    for step in steps:
        script.play(step)
    yard = script.yard
    for _ in range(len(yard.pods) + 1):
        yard.now += 1
        yard.bind(yard.unbound()[:each])
        for uid in [Uid(f"a/{name}") for name in set(yard.expelled)]:
            if uid in yard.pods:
                yard.hear(ev.PodGone(yard.at, uid))
                del yard.pods[uid]
    assert yard.released() == len(yard.pods)
    assert not yard.unbound()
