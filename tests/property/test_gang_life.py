"""A gang starts as a whole and no gang pod waits for ever, for any sequence of pod changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Effect
from app.core.lifecycle.group_tree import GroupTree
from app.core.model import Millis, Phase, Pod, Uid
from app.core.podspec.pod_groups import SIZE_FROM_GROUP, UNBOUNDED, GangDeclaration
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases
from tests.support.gang_driver import MINUTE, Lead, member

SIZE = 3

STEPS = st.lists(
    st.sampled_from(("come", "gone", "fail", "end", "wait", "grow", "shrink")),
    min_size=5,
    max_size=40,
)


class Life(Lead):
    """A gang with an arbitrary owner. Evicted pods end at the next "end" step.

    `whole` stays true if each step that starts with no running pod releases all pods or no pod.
    """

    def __init__(self, size: int, *, anew: bool) -> None:
        self.size, self.anew, self.count = size, anew, 0
        self.whole = True
        super().__init__(gpus=SIZE)

    def hear(self, *events: ev.Event) -> list[Effect]:
        using, before = self.using(), len(self.released)
        effects = super().hear(*events)
        if not using:
            self.whole &= len(self.released) - before in (0, self.size)
        return effects

    def using(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.gates and p.phase is not Phase.FINISHED]

    def come(self) -> None:
        self.count += 1
        pod = replace(held_pod(f"p{self.count:03}", "a", since=self.at), gang="g")
        self.see(replace(pod, gang_size=self.size, restart_gang=self.anew))


def oldest(pods: list[Pod]) -> Uid | None:
    return min((p.uid for p in pods), default=None)


def play(life: Life, steps: list[str]) -> None:
    for step in steps:
        held = [p for p in life.pods.values() if p.gates]
        match step:
            case "come":
                if len(held) + len(life.using()) < life.size:
                    life.come()
            case "gone":
                if uid := oldest(held + life.using()):
                    life.gone(uid)
            case "fail":
                if uid := oldest(life.using()):
                    life.finish(uid, failed=True)
                    life.gone(uid)
            case "wait":
                life.wait(MINUTE)
            case "end":
                for expelled in life.expelled:
                    if expelled.ref.uid in life.pods:
                        life.gone(expelled.ref.uid)
            case _:
                life.room(SIZE if step == "grow" else 1)


def finish_all(life: Life) -> None:
    """Act like a well-behaved controller while time passes."""
    life.room(SIZE)
    for _ in range(4):
        life.wait(20 * MINUTE)
        play(life, ["end"])
        there = len([p for p in life.pods.values() if p.phase is not Phase.FINISHED])
        for _ in range(life.size - there):
            life.come()


@settings(max_examples=cases(25, 60))
@given(steps=STEPS, size=st.integers(2, SIZE), anew=st.booleans())
def test_gang_starts_completely_and_no_pod_of_it_waits_forever(
    steps: list[str], size: int, anew: bool
) -> None:
    life = Life(size, anew=anew)
    play(life, steps)
    assert life.whole
    finish_all(life)
    assert len(life.using()) == size
    assert not [p for p in life.pods.values() if p.gates]


@settings(max_examples=40)
@given(steps=STEPS, size=st.integers(2, SIZE))
def test_gang_that_ran_completely_is_never_evicted_as_incomplete(
    steps: list[str], size: int
) -> None:
    life = Life(size, anew=True)
    for _ in range(size):
        life.come()
    assert len(life.using()) == size
    for step in steps:
        if step in ("gone", "fail") and len(life.using()) < 2:
            continue  # the gang ends with its last pod
        if step in ("gone", "fail", "come", "wait", "grow"):
            play(life, [step])
    life.at = Millis(life.at + 60 * MINUTE)
    life.hear()
    assert life.expelled == []


# Trees of pod groups whose child groups need unlike numbers of pods.

TREE_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "come",
                "come",
                "come",
                "run",
                "gone",
                "fail",
                "end",
                "wait",
                "grow",
                "shrink",
                "refuse",
            )
        ),
        st.integers(0, 5),
    ),
    min_size=15,
    max_size=40,
)


class TreeLife(Lead):
    """A CompositePodGroup with one PodGroup for each number in `leaves`.

    `has_run`: the running pods have completed the tree since the last step without released pods.
    """

    def __init__(self, leaves: list[int], needed: int) -> None:
        self.count, self.has_run = 0, False
        children = [GroupTree(f"podgroup/{n}", least) for n, least in enumerate(leaves)]
        self.tree = GroupTree("compositepodgroup/t", needed, tuple(children))
        super().__init__(gpus=sum(leaves))
        self.runs = False
        root = GangDeclaration("a", self.tree.name, UNBOUNDED, min_count=needed)
        leaf = GangDeclaration("a", "", UNBOUNDED, parent="t")
        groups = [replace(leaf, name=each.name, min_count=each.min_count) for each in children]
        self.hear(*(ev.GroupObserved(self.at, group) for group in (root, *groups)))

    def using(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.gates and p.phase is not Phase.FINISHED]

    def is_completed_by(self, pods: list[Pod]) -> bool:
        return self.tree.is_completed_by(Counter(pod.gang for pod in pods))

    def come(self, group: int) -> None:
        self.count += 1
        gang = f"podgroup/{group}"
        self.see(member(self.count, SIZE_FROM_GROUP, gang, created_at=self.at))

    def step(self, step: str, number: int) -> None:
        refused, before = set(self.refused), len(self.released)
        self.change(step, number)
        if len(self.released) > before and not refused:
            assert self.is_completed_by(self.using()), "part of the tree was released"
        running = [p for p in self.using() if p.phase is Phase.RUNNING]
        self.has_run = bool(running) and (self.has_run or self.is_completed_by(running))

    def change(self, step: str, number: int) -> None:
        pods = list(self.pods.values())
        pod = pods[number % len(pods)] if pods else None
        match step:
            case "come":
                self.come(number % len(self.tree.children or ()))
            case "gone" if pod is not None:
                self.gone(pod.uid)
            case "fail" if pod is not None and not pod.gates:
                self.finish(pod.uid, failed=True)
                self.gone(pod.uid)
            case "run":
                self.see(*(replace(p, phase=Phase.RUNNING) for p in self.using()))
            case "refuse" if pod is not None and pod.gates:
                self.refused.add(pod.name)
            case "wait":
                self.wait(MINUTE)
            case "end":
                for uid in {each.ref.uid for each in self.expelled} & self.pods.keys():
                    self.gone(uid)
            case "grow" | "shrink":
                self.room(20 if step == "grow" else number)


@settings(max_examples=cases(50, 800))
@given(
    steps=TREE_STEPS,
    leaves=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    needed=st.integers(1, 2),
)
@example(
    steps=[("come", 1)] * 3 + [("run", 0), ("gone", 0), ("gone", 0), ("come", 1)],
    leaves=[1, 3],
    needed=1,
)
def test_tree_of_unlike_groups_starts_completely_and_gives_back_an_incomplete_part(
    steps: list[tuple[str, int]], leaves: list[int], needed: int
) -> None:
    life = TreeLife(leaves, needed)
    for step in steps:
        life.step(*step)
    for _ in range(4):
        life.step("wait", 0)
        life.at = Millis(life.at + 20 * MINUTE)
        life.step("end", 0)
    assert not life.using() or life.has_run or life.is_completed_by(life.using())
