"""A gang starts as a whole and no gang pod waits for ever, for any sequence of pod changes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import Effect
from app.core.model import Millis, Phase, Pod, Uid
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases
from tests.support.gang_driver import MINUTE, Lead

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
