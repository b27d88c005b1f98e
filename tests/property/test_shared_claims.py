"""A shared claim is charged exactly once after any sequence of changes, as in a recount."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.effects import ProtectClaim, Release, UnprotectClaim
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.explain.views import ClusterView
from app.core.fairshare.usage_record import UsageStarted
from app.core.lifecycle.claim_protection import SECURE_MS, SETTLE_MS
from app.core.model import (
    ClaimRef,
    Millis,
    Node,
    NodeName,
    Phase,
    Pod,
    PoolName,
    ReleaseOutcome,
    Resource,
    Uid,
)
from app.core.podspec.resource_claims import DeviceAsk, DeviceClass, ResourceClaim
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
MANAGED = ManagedResources([GPU])
CLASSES = {"gpu": GPU}
CLAIMS = ("c0", "c1", "c2")
GANG_SIZE = 2


@dataclass
class Life:
    """A cluster of two nodes, its engine, and the objects of the API server."""

    engine: Engine = field(
        default_factory=lambda: Engine(MANAGED, EngineOptions(resource_by_device_class=CLASSES))
    )
    pods: dict[Uid, Pod] = field(default_factory=dict)
    claims: dict[str, ResourceClaim] = field(default_factory=dict)
    orders: list[Release] = field(default_factory=list)
    requests: list[ProtectClaim | UnprotectClaim] = field(default_factory=list)
    now: int = 0

    def open(self, engine: Engine) -> None:
        at = Millis(self.now)
        for name in ("n0", "n1"):
            room = {GPU: 8, PODS: 100}
            engine.handle(ev.NodeObserved(at, Node(NodeName(name), {}, room, True)))
        engine.handle(ev.ClassObserved(at, DeviceClass("nic")))
        for source in ev.WatchedSource:
            engine.handle(ev.SourceFresh(at, source))

    def hear(self, event: ev.Event) -> None:
        effects = self.engine.handle(event)
        self.orders += [e for e in effects if isinstance(e, Release)]
        self.requests += [e for e in effects if isinstance(e, ProtectClaim | UnprotectClaim)]

    def settle(self) -> None:
        """Answer every request and let every release succeed until no more pods are released."""
        for wait in (0, SECURE_MS, SETTLE_MS):
            self.now += wait
            self.answer_all()

    def answer_all(self) -> None:
        at = Millis(self.now)
        self.hear(ev.Pass(at))
        while self.orders or self.requests:
            while self.requests:
                request = self.requests.pop(0)
                claim = self.claims[request.ref.name]
                claim = replace(claim, has_finalizer=isinstance(request, ProtectClaim))
                self.claims[claim.name] = claim
                self.hear(ev.ClaimObserved(at, claim))
            self.hear(ev.Pass(at))
            if not self.orders:
                continue
            order = self.orders.pop(0)
            uid = order.intent.ref.uid
            pod = replace(
                self.pods[uid],
                gates=(),
                release_annotation=order.stamp,
                pool=order.intent.pool or None,
                phase=Phase.RUNNING,
            )
            self.pods[uid] = pod
            self.hear(ev.ReleaseAnswered(at, uid, ReleaseOutcome.RELEASED))
            self.hear(ev.PodObserved(at, pod))
            self.hear(ev.Pass(at))

    def recount(self) -> Engine:
        other = Engine(MANAGED, EngineOptions(resource_by_device_class=CLASSES))
        at = Millis(self.now)
        for pod in reversed(self.pods.values()):
            other.handle(ev.PodObserved(at, pod))
        for claim in self.claims.values():
            other.handle(ev.ClaimObserved(at, claim))
        self.open(other)
        other.handle(ev.Pass(at))
        return other

    def owed(self) -> int:
        """Return the usage of released pods, with each claim counted once."""
        running = [pod for pod in self.pods.values() if not pod.gates]
        named = {ref.name for pod in running for ref in pod.claims}
        counts = [claim_count(self.claims[name]) for name in sorted(named & set(self.claims))]
        return sum(counts) + sum((pod.container_requests or {}).get(GPU, 0) for pod in running)


def claim_count(claim: ResourceClaim) -> int:
    return sum(ask.count or 0 for (ask,) in claim.requests if ask.device_class == "gpu")


def claim_of(name: str, device_class: str, count: int) -> ResourceClaim:
    return ResourceClaim("a", name, ((DeviceAsk(device_class, count),),))


def without_runs(engine: Engine) -> Counter[str]:
    """Return the writes without usage starts, which only an engine that saw the start has."""
    return Counter(
        repr(each) for each in engine.store_writes() if not isinstance(each, UsageStarted)
    )


def without_history(view: ClusterView) -> ClusterView:
    """Return the view without history, which a recount cannot derive."""
    return ClusterView(
        {n: replace(t, history=0.0) for n, t in view.tenants.items()},
        {
            n: replace(p, growth_closed_until=None, silent_pods=0, stalled_since=None)
            for n, p in view.pools.items()
        },
    )


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
@settings(max_examples=cases(150, 1_000))
@example(  # after both pods run, the claim they share turns out to need no devices
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
    life.hear(ev.Installed(Millis(0), Millis(0)))
    for number, (kind, *details) in enumerate([*script, ("settle",)]):
        life.now += 1
        at = Millis(life.now)
        match kind, details:
            case "submit", [names, devices, gang, user]:
                mates = [p for p in life.pods.values() if (p.gang, p.user) == (gang, user)]
                gang = "" if len(mates) == GANG_SIZE else gang  # membership has a history then
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
                view = life.engine.queries.view()
                assert view.pools[PoolName("default")].used.get(GPU, 0) == life.owed()
                other = life.recount()
                assert without_history(view) == without_history(other.queries.view())
                assert without_runs(life.engine) == without_runs(other)


def submitted(number: int, names: list[str], devices: int, gang: str, user: str) -> Pod:
    plain = {GPU: devices, PODS: 1} if devices else {PODS: 1}
    return replace(
        held_pod(f"p{number:03}", "a", user=user, since=number),
        demand=plain,
        container_requests=plain,
        claims=tuple(ClaimRef(f"e{i}", name) for i, name in enumerate(names)),
        gang=gang,
        gang_size=GANG_SIZE if gang else 1,
    )
