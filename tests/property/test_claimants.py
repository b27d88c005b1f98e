"""Whatever happens to shared claims, each is charged once, and a recount finds the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.asks.claims import DeviceAsk, ResourceClaim
from app.core.effects import Release
from app.core.engine import Engine
from app.core.fair.runs import Begun
from app.core.model import (
    Answer,
    ClaimRef,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    Resource,
    Uid,
)
from app.core.resources import PODS, ManagedResources
from app.core.telling.views import View
from app.sim.world import held_pod

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
CLASSES = {"gpu": GPU}
CLAIMS = ("c0", "c1", "c2")


@dataclass
class Life:
    """A cluster of two nodes, its engine, and everything as the API server would show it."""

    engine: Engine = field(default_factory=lambda: Engine(MANAGED, classes=CLASSES))
    pods: dict[Uid, Pod] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    orders: list[Release] = field(default_factory=list)
    now: int = 0

    def open(self, engine: Engine) -> None:
        at = Millis(self.now)
        for name in ("n0", "n1"):
            room = {GPU: 8, PODS: 100}
            engine.handle(ev.NodeObserved(at, Node(NodeName(name), {}, room, True)))
        for source in ev.Source:
            engine.handle(ev.SourceFresh(at, source))

    def hear(self, event: ev.Event) -> None:
        effects = self.engine.handle(event)
        self.orders += [e for e in effects if isinstance(e, Release)]

    def settle(self) -> None:
        """Let every release succeed until nothing more is released."""
        at = Millis(self.now)
        self.hear(ev.Pass(at))
        while self.orders:
            order = self.orders.pop(0)
            uid = order.intent.ref.uid
            pod = replace(
                self.pods[uid],
                gates=(),
                release=order.stamp,
                pool=order.intent.pool or None,
                phase=Phase.RUNNING,
            )
            self.pods[uid] = pod
            self.hear(ev.ReleaseAnswered(at, uid, Answer.RELEASED))
            self.hear(ev.PodObserved(at, pod))
            self.hear(ev.Pass(at))

    def recount(self) -> Engine:
        other = Engine(MANAGED, classes=CLASSES)
        at = Millis(self.now)
        for pod in reversed(self.pods.values()):
            other.handle(ev.PodObserved(at, pod))
        for claim in self.claims.values():
            other.handle(ev.ClaimObserved(at, claim))
        self.open(other)
        other.handle(ev.Pass(at))
        return other

    def owed(self) -> int:
        """Return what released pods use, each claim counted once."""
        running = [pod for pod in self.pods.values() if not pod.gates]
        named = {ref.name for pod in running for ref in pod.claims}
        counts = [claim_count(self.claims[name]) for name in sorted(named & set(self.claims))]
        return sum(counts) + sum((pod.plain or {}).get(GPU, 0) for pod in running)


def claim_count(claim: ResourceClaim) -> int:
    return sum(ask.count or 0 for (ask,) in claim.requests if ask.device_class == "gpu")


def claim_of(name: str, device_class: str, count: int) -> ResourceClaim:
    return ResourceClaim("a", name, ((DeviceAsk(device_class, count),),))


def without_runs(engine: Engine) -> Counter[str]:
    """Return what a store must hold. When a run began only those know who saw it."""
    return Counter(repr(each) for each in engine.writes() if not isinstance(each, Begun))


def without_history(view: View) -> View:
    """What the past weighs cannot be counted anew; all else must be."""
    return View({n: replace(t, history=0.0) for n, t in view.tenants.items()}, view.pools)


steps = st.one_of(
    st.tuples(
        st.just("submit"),
        st.lists(st.sampled_from(CLAIMS), max_size=3),
        st.integers(0, 2),
        st.sampled_from(["", "", "g", "h"]),
        st.sampled_from(["u", "v"]),
    ),
    st.tuples(
        st.just("claim"),
        st.sampled_from(CLAIMS),
        st.sampled_from(["gpu", "gpu", "nic"]),
        st.integers(1, 9),
    ),
    st.tuples(st.just("end"), st.integers(0, 10_000)),
    st.tuples(st.just("settle")),
)


@given(st.lists(steps, max_size=40))
@settings(max_examples=150)
@example(  # a claim that two share turns out to be worth nothing once both run
    [
        ("claim", "c1", "gpu", 3),
        ("submit", ["c1"], 0, "h", "v"),
        ("submit", ["c1"], 0, "h", "v"),
        ("settle",),
        ("claim", "c1", "nic", 6),
    ]
)
def test_each_claim_is_charged_once_and_a_recount_finds_the_same(
    script: list[tuple[object, ...]],
) -> None:
    life = Life()
    life.open(life.engine)
    life.hear(ev.LeadershipGained(Millis(0), 1))
    life.hear(ev.StoreReady(Millis(0)))
    for number, (kind, *details) in enumerate([*script, ("settle",)]):
        life.now = number
        at = Millis(number)
        match kind, details:
            case "submit", [names, devices, gang, user]:
                pod = submitted(number, names, devices, gang, user)  # type: ignore[arg-type]
                life.pods[pod.uid] = pod
                life.hear(ev.PodObserved(at, pod))
            case "claim", [name, device_class, count]:
                claim = claim_of(str(name), str(device_class), int(str(count)))
                life.claims[claim.name] = claim
                life.hear(ev.ClaimObserved(at, claim))
            case "end", [which]:
                if life.pods:
                    uid = sorted(life.pods)[int(str(which)) % len(life.pods)]
                    del life.pods[uid]
                    life.hear(ev.PodGone(at, uid))
            case _:
                life.settle()
                view = life.engine.outlook.view()
                assert view.pools[PoolName("default")].used.get(GPU, 0) == life.owed()
                other = life.recount()
                assert without_history(view) == without_history(other.outlook.view())
                assert without_runs(life.engine) == without_runs(other)


def submitted(number: int, names: list[str], devices: int, gang: str, user: str) -> Pod:
    plain = {GPU: devices, PODS: 1} if devices else {PODS: 1}
    return replace(
        held_pod(f"p{number:03}", "a", user=user, since=number),
        demand=plain,
        plain=plain,
        claims=tuple(ClaimRef(f"e{i}", name) for i, name in enumerate(names)),
        gang=gang,
        gang_size=2 if gang else 1,
    )
