"""Each release has exactly one audit entry, even if leaders are killed.

The chain and the store lag behind the engine independently, and a killed leader loses its pending
writes. The state of the API server is the truth.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import events as ev
from app.core.audit_entry import AuditRecord, EntryType
from app.core.effects import Charge, ClearAuditMarker, Effect, Intend, Refund, Release
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Millis, Node, NodeName, Phase, Pod, ReleaseOutcome, Resource, Uid
from app.core.quantities import PODS, ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.fakes.fake_recorder import FakeRecorder
from tests.support.depth import cases

GPU = Resource("nvidia.com/gpu")
AT = Millis(1000)
NODE = Node(NodeName("n"), {}, {GPU: 4, PODS: 1000}, True)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "patch", "answer", "hear", "finish", "delete", "seal", "store", "kill"]
        ),
        st.integers(0, 5),
    ),
    min_size=5,
    max_size=80,
)


@dataclass
class Cluster:
    """The stored state, all releases so far, and a leader with its pending messages."""

    epoch: int = 0
    pods: dict[Uid, Pod] = field(default_factory=dict)
    released: set[Uid] = field(default_factory=set)
    unseen: set[Uid] = field(default_factory=set)
    chain: FakeRecorder = field(default_factory=FakeRecorder)
    intents: dict[Uid, Intend] = field(default_factory=dict)
    orders: list[Release] = field(default_factory=list)
    answers: list[tuple[Uid, ReleaseOutcome]] = field(default_factory=list)
    watch: list[ev.NewsEvent] = field(default_factory=list)
    unsealed: list[AuditRecord | ClearAuditMarker] = field(default_factory=list)
    unwritten: list[Charge | Refund] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the leader. The next one starts without observations."""
        self.epoch += 1
        lost = {r.facts["uid"] for r in self.unsealed if isinstance(r, AuditRecord)}
        self.unseen |= {uid for uid in self.released if uid not in self.pods and uid in lost}
        self.unseen |= {uid for uid in self.released if uid not in self.pods and self.waits(uid)}
        for queue in (self.orders, self.answers, self.watch, self.unsealed, self.unwritten):
            queue.clear()
        self.engine = Engine(ManagedResources([GPU]), EngineOptions(max_in_flight=3))
        self.hear(ev.NodeObserved(AT, NODE))
        for pod in self.pods.values():
            self.hear(ev.PodObserved(AT, pod))
        for source in ev.WatchedSource:
            self.hear(ev.SourceFresh(AT, source))
        self.hear(ev.Installed(AT, Millis(-1)))
        begun = tuple(self.intents.values())
        self.hear(ev.LeadershipGained(AT, self.epoch, dict(self.chain.notes), begun))
        self.intents = {}  # rebuilt
        self.hear(ev.StoreReady(AT))

    def waits(self, uid: Uid) -> bool:
        """Return whether the leader has not yet received the end of this pod."""
        return uid in {uid for uid, _ in self.answers} | {_uid(event) for event in self.watch}

    def hear(self, event: ev.NewsEvent) -> None:
        for each in (event, ev.Pass(AT)):
            for effect in self.engine.handle(each):
                self.play(effect)

    def play(self, effect: Effect) -> None:
        match effect:
            case Release():
                self.intents[effect.intent.ref.uid] = effect.intent
                self.orders.append(effect)
            case AuditRecord() | ClearAuditMarker():
                self.unsealed.append(effect)
            case Charge() | Refund():
                self.unwritten.append(effect)
            case _:
                pass

    def step(self, what: str, which: int) -> None:
        match what:
            case "create":
                self.count += 1
                pod = held_pod(f"p{self.count}", "team", 1 + which % 2)
                self.pods[pod.uid] = pod
                self.watch.append(ev.PodObserved(AT, pod))
            case "patch" if self.orders:
                self.patch(self.orders.pop(which % len(self.orders)), lost=which == 5)
            case "answer" if self.answers:
                uid, answer = self.answers.pop(which % len(self.answers))
                self.hear(ev.ReleaseAnswered(AT, uid, answer))
            case "hear" if self.watch:
                self.hear(self.watch.pop(0))
            case "finish" | "delete" if self.pods:
                self.stop(self.pods[list(self.pods)[which % len(self.pods)]], what == "finish")
            case "seal":
                self.seal(which + 1)
            case "store":
                for effect in self.unwritten[: which + 1]:
                    self.intents.pop(effect.uid, None)
                del self.unwritten[: which + 1]
            case "kill":
                self.kill()
            case _:
                pass

    def patch(self, order: Release, *, lost: bool) -> None:
        """Apply a release in the API server. If the answer is lost, the leader reads the pod."""
        uid = order.intent.ref.uid
        pod = self.pods.get(uid)
        if pod is None or not pod.gates:
            self.answers.append((uid, ReleaseOutcome.GONE if pod is None else ReleaseOutcome.HELD))
            return
        self.pods[uid] = replace(pod, gates=(), release_annotation=order.stamp, node=NODE.name)
        self.released.add(uid)
        self.watch.append(ev.PodObserved(AT, self.pods[uid]))
        if not lost:
            self.answers.append((uid, ReleaseOutcome.RELEASED))

    def stop(self, pod: Pod, finishes: bool) -> None:
        if finishes and not pod.gates:
            self.pods[pod.uid] = replace(pod, phase=Phase.FINISHED)
            self.watch.append(ev.PodObserved(AT, self.pods[pod.uid]))
        elif not finishes:
            del self.pods[pod.uid]
            self.watch.append(ev.PodGone(AT, pod.uid))

    def seal(self, count: int) -> None:
        for effect in self.unsealed[:count]:
            if isinstance(effect, AuditRecord):
                self.chain.record(effect)
            else:
                self.chain.clear_marker(effect.key)
        del self.unsealed[:count]

    def settle(self) -> None:
        """Deliver everything."""
        while self.orders or self.answers or self.watch:
            for what in ("patch", "answer", "hear"):
                self.step(what, 0)
        self.seal(len(self.unsealed))


def _uid(event: ev.NewsEvent) -> Uid | None:
    match event:
        case ev.PodObserved(_, pod):
            return pod.uid
        case ev.PodGone(_, uid):
            return uid
        case _:
            return None


def told(cluster: Cluster, entry_type: EntryType, *, certain: bool = True) -> Counter[object]:
    """Return the number of audit entries of a type, per pod."""
    return Counter(
        record.facts["uid"]
        for record in cluster.chain.told(entry_type)
        if record.facts.get("certain", True) is certain
    )


@settings(max_examples=cases(120, 300))
@given(STEPS)
def test_every_release_is_recorded_once_even_if_processes_are_killed(
    steps: list[tuple[str, int]],
) -> None:
    cluster = Cluster()
    for what, which in steps:
        cluster.step(what, which)
    cluster.settle()
    releases, guesses = (
        told(cluster, EntryType.RELEASED),
        told(cluster, EntryType.RELEASED, certain=False),
    )
    assert set(releases) <= cluster.released, "told, and not so"
    assert not releases - Counter(cluster.released), "told twice"
    missing = cluster.released - set(releases)
    assert missing <= cluster.unseen, "never told, though its leader or the next could see it"
    assert not guesses - Counter(list(guesses)), "guessed twice"
    assert not set(guesses) & set(releases)


@settings(max_examples=cases(80, 200))
@given(STEPS)
def test_every_held_pod_is_recorded_once(steps: list[tuple[str, int]]) -> None:
    cluster = Cluster()
    for what, which in steps:
        cluster.step(what, which)
    cluster.settle()
    held = told(cluster, EntryType.HELD)
    assert not held - Counter(list(held)), "told twice"
    assert {uid for uid, pod in cluster.pods.items() if pod.gates} <= set(held)
    assert set(cluster.chain.notes) <= {*cluster.pods}, "noted, and gone"
    assert not cluster.chain.told(EntryType.BYPASSED)
