"""Answers of a small cluster, built from the API's own models, so that they match the API."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from app.web.api import schemas

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def gpus(count: int) -> dict[str, str]:
    """Return an amount of GPUs."""
    return {GPU: str(count)}


def tenants() -> schemas.PageModel[schemas.TenantShown]:
    """Three tenants: a parent and its two children."""
    parent = schemas.TenantShown(
        name="research",
        exists=True,
        weight="1",
        share="0.75",
        weighted_share="0.75",
        used={"h100": gpus(40), "t4": gpus(8)},
        borrowed={"h100": gpus(8)},
        pending=41,
        fair_share="0.7500",
    )
    team_a = schemas.TenantShown(
        name="team-a",
        parent="research",
        exists=True,
        weight="2",
        users=[schemas.UserWeight(name="alice@example.com", weight="3")],
        namespaces=["team-a", "team-a-dev"],
        quotas=[schemas.QuotaSpec(pool="h100", guarantee=gpus(32), limit=gpus(48))],
        max_pending=500,
        share="0.625",
        weighted_share="0.3125",
        used={"h100": gpus(40)},
        borrowed={"h100": gpus(8)},
        pending=41,
        fair_share="0.5000",
    )
    team_b = schemas.TenantShown(
        name="team-b",
        parent="research",
        exists=True,
        weight="1",
        paused=True,
        share="0.125",
        weighted_share="0.125",
        used={"t4": gpus(8)},
        borrowed={},
        pending=0,
        fair_share="0.2500",
    )
    return schemas.PageModel(items=[parent, team_a, team_b])


def pools() -> schemas.PageModel[schemas.PoolShown]:
    """A full pool and a paused pool."""
    h100 = schemas.PoolShown(
        name="h100",
        exists=True,
        node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        capacity=gpus(64),
        used=gpus(64),
        free=gpus(0),
        nodes=8,
    )
    t4 = schemas.PoolShown(
        name="t4",
        exists=True,
        paused=True,
        placement="spread",
        capacity=gpus(16),
        used=gpus(8),
        free=gpus(8),
        nodes=4,
    )
    return schemas.PageModel(items=[h100, t4])


def waiting(
    name: str = "train-7",
    user: str = "alice@example.com",
    position: int = 3,
    pods: int = 1,
    rule: str = "limit",
    estimate: schemas.EstimateShown | None = None,
) -> schemas.QueuedWorkload:
    """A held workload of team-a."""
    return schemas.QueuedWorkload(
        namespace="team-a",
        name=name,
        uid=f"uid-of-{name}",
        gang="train" if pods > 1 else None,
        pods=pods,
        user=user,
        priority=10,
        since=NOW - timedelta(minutes=12),
        request={"cpu": str(pods)} | gpus(4 * pods),
        pools=["h100"],
        position=position,
        length=41 if position else 0,
        rule=rule,
        reason=f"queued: {position} of 41 in team-a/{user}; waits for {4 * pods} {GPU} of pool "
        "h100; tenant team-a is at its limit: 48 nvidia.com/gpu used, 48 nvidia.com/gpu limit",
        estimate=estimate,
        estimate_withheld=None,
    )


def estimate() -> schemas.EstimateShown:
    """An estimate made a minute ago."""
    return schemas.EstimateShown(p50=13 * 60, p90=21 * 60, at=NOW - timedelta(minutes=1))


def mine(*, has_work: bool = True) -> schemas.Me:
    """Alice's held gang, her held pod and her released pod; `has_work`: or nothing at all."""
    held = [waiting("train-6", position=1, pods=4, rule="fair order", estimate=estimate())]
    held.append(waiting("train-7", position=5))
    where = "released to pool h100, on node h100-3 since 2026-03-01T11:48:00Z"
    running = waiting("train-2", position=0, rule="released").model_copy(update={"reason": where})
    own = [(each, "held") for each in held] + [(running, "released")]
    tenant = schemas.OwnTenant(
        tenant="team-a",
        weight="3",
        used=0.0625,
        fair_share=0.25,
        tenant_used=0.625,
        tenant_fair_share=0.5,
        amounts={"h100": gpus(4)},
        pending=5,
    )
    return schemas.Me(
        name="alice@example.com",
        tenants=[tenant] if has_work else [],
        workloads=[
            schemas.OwnWorkload(**each.model_dump(), tenant="team-a", state=state)
            for each, state in own
            if has_work
        ],
        left_out=2 if has_work else 0,
    )


def queue(*items: schemas.QueuedWorkload) -> schemas.QueueModel:
    """The queue of team-a."""
    found = items or (
        waiting("train-5", position=1, rule="capacity", estimate=estimate()),
        waiting("train-6", position=2, pods=4, rule="fair order", estimate=estimate()),
        waiting(),
        waiting("eval", "bob", position=0, rule="no pool"),
    )
    return schemas.QueueModel(tenant="team-a", pending=41, items=list(found))


def workload(**changes: object) -> schemas.WorkloadModel:
    """Why train-7 waits."""
    fields = waiting(estimate=estimate()).model_dump() | {
        "tenant": "team-a",
        "state": "held",
        "numbers": {
            "tenant": "team-a",
            "pool": "h100",
            f"{GPU} used": "48",
            f"{GPU} asked": "4",
            f"{GPU} limit": "48",
        },
        "ahead": [
            schemas.AheadModel(
                tenant="team-b",
                score="0.125",
                own="team-a",
                own_score="0.3125",
                reason="tenant team-b has the lower score: 0.125 against 0.3125 of team-a",
            ),
        ],
        "remedies": [
            f"The end of a pod of tenant team-a that uses {GPU} of pool h100.",
            f"A limit of tenant team-a in pool h100 above 48 {GPU}, which its parent's admin sets.",
        ],
    }
    return schemas.WorkloadModel.model_validate(fields | changes)


def users() -> schemas.PageModel[schemas.UserShown]:
    """The users of team-a."""
    alice = schemas.UserShown(
        name="alice@example.com",
        weight="3",
        used={"h100": gpus(36)},
        pending=40,
        share="0.5625",
        fair_share="0.3750",
    )
    bob = schemas.UserShown(name="bob", weight="1", used={"h100": gpus(4)}, pending=1)
    return schemas.PageModel(items=[alice, bob])


def stored(weight: str = "2") -> schemas.TenantWritten:
    """The tenant team-a as it was stored."""
    return schemas.TenantWritten(name="team-a", parent="research", weight=weight)


def change(*, to_nobody: bool = False) -> schemas.TenantChange:
    """The result of doubling bob's weight."""
    shares = [("alice@example.com", "0.5", "0.4"), ("bob", "0.166667", "0.266667")]
    return schemas.TenantChange(
        before=stored(),
        after=stored(),
        shares=[
            schemas.ShareChange(tenant="team-a", user=user, before=before, after=after)
            for user, before, after in shares
            if not to_nobody
        ],
    )


def usage(*, lost: bool = False) -> schemas.UsageModel:
    """The usage of two tenants with two kinds of GPU in the last hour."""
    rows = [
        schemas.UsageRow(
            tenant="team-a",
            pool="h100",
            resource_seconds={GPU: "144000.123", "amd.com/gpu": "3600"},
        ),
        schemas.UsageRow(tenant="team-b", pool="t4", resource_seconds={GPU: "28800"}),
    ]
    return schemas.UsageModel.model_validate(
        {
            "items": rows,
            "from": NOW - timedelta(hours=1),
            "to": NOW,
            "completeSince": NOW - timedelta(minutes=30) if lost else None,
        }
    )


def simulation() -> schemas.Simulation:
    """The effect of a weight of 3 on team-a."""

    def foreseen(share: str, started: int, mean: float) -> schemas.TenantForecastModel:
        return schemas.TenantForecastModel(
            share=share,
            pending=240,
            started=started,
            wait_mean_seconds=mean,
            wait_p90_seconds=3 * mean,
        )

    return schemas.Simulation(
        pods=412,
        hours=4.0,
        seconds=1.26,
        assumed="Run times as those of pods that finished in the last day.",
        tenants=[
            schemas.TenantForeseen(
                tenant="team-a",
                weight_now="2",
                weight_then="3",
                now=foreseen("0.5", 180, 2700.0),
                then=foreseen("0.6", 216, 1500.0),
            ),
            schemas.TenantForeseen(
                tenant="team-b",
                weight_now="1",
                weight_then="1",
                now=foreseen("0.25", 60, 600.0),
                then=foreseen("0.2", 48, 900.0),
            ),
        ],
    )


def trial(**changes: object) -> schemas.TrialModel:
    """A trial of a Job with four pods. One pod would start now."""
    fields = {
        "namespace": "team-a",
        "tenant": "team-a",
        "user": "alice@example.com",
        "state": "waits",
        "pods": 4,
        "starts_now": 1,
        "gang": None,
        "request": {"cpu": "4"} | gpus(32),
        "pools": ["h100"],
        "position": 1,
        "length": 3,
        "rule": "capacity",
        "reason": "queued: 1 of 3 in team-a/alice@example.com; waits for 8 nvidia.com/gpu of pool "
        "h100",
        "numbers": {f"{GPU} asked": "8", f"{GPU} free in h100": "2"},
        "ahead": [],
        "remedies": [
            "the end of pods that use 6 nvidia.com/gpu in pool h100",
            "more nodes in pool h100",
        ],
        "simulated_seconds": 5400.0,
        "assumed": "Each pod runs for one hour more. New pods are left out.",
        "estimate": None,
        "estimate_withheld": "Too few estimates have come out yet.",
    }
    return schemas.TrialModel.model_validate(fields | changes)


def quotas() -> schemas.Quotas:
    """Quotas of team-a in two pools."""
    rows = [
        schemas.QuotaRow(
            tenant="team-a",
            parent="research",
            weight="2",
            pool=pool,
            guarantee=gpus(32) if pool == "h100" else {},
            limit=gpus(48) if pool == "h100" else {},
            used=gpus(40) if pool == "h100" else {},
            borrowed=gpus(8) if pool == "h100" else {},
            pending=41,
            weighted_share="0.3125",
        )
        for pool in ("h100", "t4")
    ]
    return schemas.Quotas(items=rows, at=NOW)


def audit_lines() -> str:
    """Three entries and a signed head of an audit chain."""
    at = int(NOW.timestamp() * 1000)
    pod = {"uid": "u", "namespace": "team-a", "pod": "train-5", "tenant": "team-a", "user": "bob"}
    entries: list[dict[str, object]] = [
        {"deed": "held", "facts": {**pod, "priority": 10}},
        {
            "deed": "released",
            "facts": {**pod, "pool": "h100", "node": "h100-3", "waited": 61, "rule": "fair order"},
        },
        {
            "deed": "changed",
            "facts": {
                "kind": "Tenant",
                "name": "team-a",
                "did": "changed",
                "by": "carol",
                "fields": {"weight": {"before": "1", "after": "2"}},
            },
        },
    ]
    lines = [
        {"audit": True, "number": n, "epoch": 1, "at": at + 1000 * n, **entry, "hash": "h"}
        for n, entry in enumerate(entries, 1)
    ]
    return "\n".join(map(json.dumps, [*lines, {"audit": True, "head": {}}])) + "\n"
