"""Two teams on one full cluster, and callers with different rights.

Every object that belongs only to the other team has the word `CANARY` in its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.core import events as ev
from app.core.audit.codec import SignedHead, entry_line
from app.core.audit_entry import AuditRecord, EntryType, Fact, seal
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.model import Millis, NodeName, Pod, PoolName, Quota, TenantName, Uid, UserName
from app.core.quantities import ManagedResources
from app.kube.proposed_pods import ProposedPods
from app.ports.forecasts import Comparison, Trial, WeightChanges
from app.sim.cluster.virtual_cluster import held_pod
from app.sim.forecast import trial, what_if
from app.sim.forecast.run_times import RunTimes
from app.sim.forecast.worker_protocol import encode_body
from app.tls.audit_signing_key import Signer
from app.web.api.auth import Access
from app.web.api.quota_history import AuditedQuotas
from app.web.api.route_context import RouteContext
from tests.fakes.fake_api_cluster import GPU, NOW, ApiCluster, held, pool, runs, tenant
from tests.fakes.fake_audit_stream import FakeKey, FakeTrail, Stream
from tests.fakes.fake_authorizer import People, Right
from tests.fakes.fake_tenants_and_pools import FakeResources
from tests.fakes.fake_usage_records import FakeRuns

CANARY = "zebrafinch"
OURS, OTHERS, PARENT = "team-a", "team-b", "research"
THEIR_NAMESPACE = f"{CANARY}-space"
THEIR_USERS = (f"{CANARY}-carol@example.com", f"{CANARY}-dave@example.com")
HOUR = 3_600_000

ADMIN: set[Right] = {
    ("get", "tenants", OURS),
    ("update", "tenants", OURS),
    ("update", "tenants/users", OURS),
    ("get", "tenants/queue", OURS),
    ("get", "tenants/usage", OURS),
    ("get", "audit", OURS),
    ("create", "simulations", ""),
    ("get", "stream", ""),
    ("get", f"{OURS}:pods", ""),
    ("list", f"{OURS}:events", ""),
    ("create", f"{OURS}:pods", ""),
}
PEOPLE: dict[str, set[Right]] = {
    "nobody": set(),
    "admin": ADMIN,
    "viewer": {
        ("list", "tenants", ""),
        ("get", "tenants", ""),
        ("get", "tenants/queue", ""),
        ("get", "tenants/usage", ""),
        ("list", "pools", ""),
        ("get", "pools", ""),
        ("get", "quotas", ""),
        ("get", "audit", ""),
        ("get", "stream", ""),
        ("get", f"{OURS}:pods", ""),
    },
    "operator": {
        ("*", what, "")
        for what in (
            *("tenants", "tenants/users", "tenants/queue", "tenants/usage", "pools", "quotas"),
            *("audit", "simulations", "stream", f"{OURS}:pods", f"{THEIR_NAMESPACE}:pods"),
            *(f"{OURS}:events", f"{THEIR_NAMESPACE}:events"),
        )
    },
}
"""Rights by caller. The name of a caller is also its token."""


@dataclass(frozen=True)
class Here:
    """Implements `Simulations`, for one hour at most, and `Trials`, both in this process."""

    cluster: ApiCluster

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        """Run both simulations."""
        snapshot = self.cluster.engine.queries.snapshot(self.cluster.now)
        then, runs = what_if.apply_weights(snapshot, changes), RunTimes()
        before, after = (
            what_if.forecast_tenants(snapshot, runs, tenants, min(hours, 1.0))
            for tenants in (snapshot.tenants, then)
        )
        return Comparison(
            pods=len(snapshot.held),
            seconds=0.0,
            assumed=what_if.assumptions_text(runs),
            tenants={name: (before[name], after[name]) for name in before if name in after},
        )

    async def simulate_pods(self, user: UserName, pods: Sequence[Pod]) -> Trial:
        """Simulate proposed pods."""
        snapshot, runs = self.cluster.engine.queries.snapshot(self.cluster.now), RunTimes()
        body = encode_body((snapshot, runs))
        found, wait = trial.simulate_first_instant(body, pods), trial.simulate_last_wait(body, pods)
        assumed = what_if.assumptions_text(runs)
        return Trial(snapshot.at, found.released, found.held, found.why, wait, None, assumed)


class Neighbours(ApiCluster):
    """An `ApiCluster` with two teams."""

    def __init__(self) -> None:
        super().__init__()
        self.people = People({name: set(rights) for name, rights in PEOPLE.items()})
        self.stream = Stream()
        self.resources = _resources()

    async def settle(self) -> None:
        """Load all objects."""
        await self.deliver(*_news())
        await self.open()
        _write(self.stream, await FakeKey().load(), _records())

    def context(self) -> RouteContext:
        here = Here(self)
        chain = FakeTrail(self.stream)
        found = FakeRuns()
        for run in _runs():
            found.runs.apply(UsageStarted(run) if run.end is None else UsageEnded(run))
        return replace(
            super().context(),
            access=Access(self.people),
            audit_reader=chain,
            usage_records=found,
            resources=self.resources,
            past_quotas=AuditedQuotas(chain, self.view),
            simulations=here,
            trials=here,
            proposals=ProposedPods(ManagedResources([GPU]), frozenset(), lambda pod, *_: pod),
        )


def _news() -> Iterable[ev.ClusterEvent]:
    """Return a cluster of two pools that both teams fill and wait for."""
    yield from pool("h100", 4, worth=4)
    yield from pool("t4", 2, devices=4)
    quotas = {"h100": Quota({GPU: 8}, {GPU: 24})}
    yield tenant(PARENT, 3)
    yield tenant(OURS, 2, parent=PARENT, users={"alice@example.com": 3}, quotas=quotas)
    theirs = tenant(OTHERS, 1, parent=PARENT, users={THEIR_USERS[0]: 2}, quotas=quotas)
    assert theirs.tenant is not None
    yield replace(theirs, tenant=replace(theirs.tenant, namespaces=(THEIR_NAMESPACE,)))
    carol, dave = THEIR_USERS
    for number, (namespace, user) in enumerate(
        [
            (OURS, "alice@example.com"),
            (OURS, "bob@example.com"),
            (THEIR_NAMESPACE, carol),
            (THEIR_NAMESPACE, dave),
        ]
    ):
        mark = "" if namespace == OURS else f"{CANARY}-"
        yield runs(f"{mark}run-{number}", namespace, user, f"h100-{number:02}", 8 - number % 2)
        yield held(f"{mark}wait-{number}", namespace, user, 1 + number)
        yield held(f"{mark}large-{number}", namespace, user, 8)
        for member in range(2):
            one = held_pod(f"{mark}gang-{number}-{member}", namespace, 8, user=user, since=NOW)
            gang = f"{mark}gang-{number}"
            yield ev.PodObserved(NOW, replace(one, gang=gang, gang_size=2 + number % 2))
    nowhere = held_pod(f"{CANARY}-nowhere", THEIR_NAMESPACE, 64, user=dave, since=NOW)
    yield ev.PodObserved(NOW, nowhere)


def _runs() -> Iterable[UsageRecord]:
    """Return the usage records of both teams: one ended and one open per team."""
    for number, (name, namespace, user) in enumerate(
        [(OURS, OURS, "alice@example.com"), (OTHERS, THEIR_NAMESPACE, THEIR_USERS[0])]
    ):
        mark = "" if name == OURS else f"{CANARY}-"
        for ended in (True, False):
            begin = Millis(NOW - HOUR // 2)
            pod = f"{mark}run-{number}-{ended}"
            yield UsageRecord(
                Uid(pod), namespace, pod, f"{mark}train", TenantName(name), UserName(user),
                PoolName("h100"), {GPU: 2}, begin, NodeName("h100-00"), begin,
                Millis(NOW - 1000) if ended else None,
            )  # fmt: skip


def _records() -> Iterable[AuditRecord]:
    """Return entries of most types about each team, and one entry about both."""
    for name, namespace, user in (
        (OURS, OURS, "alice@example.com"),
        (OTHERS, THEIR_NAMESPACE, THEIR_USERS[0]),
    ):
        mark = "" if name == OURS else f"{CANARY}-"
        pod = {"namespace": namespace, "pod": f"{mark}run", "tenant": name, "user": user}
        for entry_type in (
            EntryType.HELD,
            EntryType.RELEASED,
            EntryType.REFUSED,
            EntryType.BYPASSED,
        ):
            yield AuditRecord(NOW, entry_type, pod)
        facts: dict[str, Fact] = {
            "kind": "Tenant",
            "name": name,
            "generation": 3,
            "by": f"{mark}lead",
        }
        yield AuditRecord(NOW, EntryType.CHANGED, facts)
    mixed = {"namespace": OURS, "pod": "run", "tenant": OURS, "user": "alice@example.com"}
    told = {"for": f"{THEIR_NAMESPACE}/{CANARY}-wait", "forTenant": OTHERS}
    yield AuditRecord(NOW, EntryType.RECLAIMED, {**mixed, **told})
    yield AuditRecord(NOW, EntryType.LEADING, {"holder": f"{CANARY}-controller"})


def _write(stream: Stream, signer: Signer, records: Iterable[AuditRecord]) -> None:
    """Append entries as a leader does, and sign the head."""
    head = stream.last()
    for record in records:
        entry = seal(head, 1, record)
        stream.rows.append((entry.number, entry_line(entry)))
        head = entry.head
    stream.signed, stream.top = signer.sign(SignedHead("default", head, 1, NOW)), head.number


def _resources() -> FakeResources:
    """Return the same tenants and pools in their stored form."""
    found = FakeResources()
    found.put("tenants", PARENT, {"weight": "3"})
    ours = {"parent": PARENT, "weight": "2", "namespaces": [OURS]}
    found.put("tenants", OURS, {**ours, "users": [{"name": "alice@example.com", "weight": "3"}]})
    theirs = {"parent": PARENT, "weight": "1", "namespaces": [THEIR_NAMESPACE]}
    found.put("tenants", OTHERS, {**theirs, "users": [{"name": THEIR_USERS[0], "weight": "2"}]})
    for name in ("h100", "t4"):
        found.put("pools", name, {"nodeSelector": {"kind": name}})
    return found
