"""What a small cluster would answer, as the API's own models: nothing here can drift from them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from app.web.api import shown, written

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def gpus(count: int) -> dict[str, str]:
    """Return an amount of GPUs."""
    return {GPU: str(count)}


def tenants() -> shown.Page[shown.TenantShown]:
    """Three tenants; two of them are siblings under the third."""
    parent = shown.TenantShown(
        name="research",
        exists=True,
        weight="1",
        share="0.75",
        weighted_share="0.75",
        used={"h100": gpus(40), "t4": gpus(8)},
        borrowed={"h100": gpus(8)},
        pending=41,
    )
    team_a = shown.TenantShown(
        name="team-a",
        parent="research",
        exists=True,
        weight="2",
        users=[shown.UserWeight(name="alice@example.com", weight="3")],
        namespaces=["team-a", "team-a-dev"],
        quotas=[shown.QuotaSpec(pool="h100", guarantee=gpus(32), limit=gpus(48))],
        max_pending=500,
        share="0.625",
        weighted_share="0.3125",
        used={"h100": gpus(40)},
        borrowed={"h100": gpus(8)},
        pending=41,
    )
    team_b = shown.TenantShown(
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
    )
    return shown.Page(items=[parent, team_a, team_b])


def pools() -> shown.Page[shown.PoolShown]:
    """A pool that is full, and one that is paused."""
    h100 = shown.PoolShown(
        name="h100",
        exists=True,
        node_selector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        capacity=gpus(64),
        used=gpus(64),
        free=gpus(0),
        nodes=8,
    )
    t4 = shown.PoolShown(
        name="t4",
        exists=True,
        paused=True,
        placement="spread",
        capacity=gpus(16),
        used=gpus(8),
        free=gpus(8),
        nodes=4,
    )
    return shown.Page(items=[h100, t4])


def waiting(
    name: str = "train-7",
    user: str = "alice@example.com",
    position: int = 3,
    pods: int = 1,
    rule: str = "limit",
    estimate: shown.EstimateShown | None = None,
) -> shown.Waiting:
    """A held workload of team-a."""
    return shown.Waiting(
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
    )


def estimate() -> shown.EstimateShown:
    """An estimate made a minute ago."""
    return shown.EstimateShown(p50=13 * 60, p90=21 * 60, at=NOW - timedelta(minutes=1))


def queue(*items: shown.Waiting) -> shown.Queue:
    """The queue of team-a."""
    found = items or (
        waiting("train-5", position=1, rule="capacity", estimate=estimate()),
        waiting("train-6", position=2, pods=4, rule="fair order", estimate=estimate()),
        waiting(),
        waiting("eval", "bob", position=0, rule="no pool"),
    )
    return shown.Queue(tenant="team-a", pending=41, items=list(found))


def workload(**changes: object) -> shown.Workload:
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
            shown.Ahead(tenant="team-b", score="0.125", own="team-a", own_score="0.3125001"),
        ],
        "remedies": [
            f"The end of a pod of tenant team-a that uses {GPU} of pool h100.",
            f"A limit of tenant team-a in pool h100 above 48 {GPU}, which its parent's admin sets.",
        ],
        "estimate_withheld": None,
    }
    return shown.Workload.model_validate(fields | changes)


def users() -> shown.Page[shown.UserShown]:
    """The users of team-a."""
    alice = shown.UserShown(
        name="alice@example.com", weight="3", used={"h100": gpus(36)}, pending=40
    )
    bob = shown.UserShown(name="bob", weight="1", used={"h100": gpus(4)}, pending=1)
    return shown.Page(items=[alice, bob])


def stored(weight: str = "2") -> written.TenantWritten:
    """The tenant team-a as it was stored."""
    return written.TenantWritten(name="team-a", parent="research", weight=weight)


def change(*, to_nobody: bool = False) -> written.TenantChange:
    """What doubling bob's weight would do."""
    shares = [("alice@example.com", "0.5", "0.4"), ("bob", "0.166667", "0.266667")]
    return written.TenantChange(
        before=stored(),
        after=stored(),
        shares=[
            written.ShareChange(tenant="team-a", user=user, before=before, after=after)
            for user, before, after in shares
            if not to_nobody
        ],
    )


def usage(*, lost: bool = False) -> shown.Usage:
    """What two tenants used of two kinds of GPU, in the last hour."""
    rows = [
        shown.UsageRow(
            tenant="team-a",
            pool="h100",
            resource_seconds={GPU: "144000.123", "amd.com/gpu": "3600"},
        ),
        shown.UsageRow(tenant="team-b", pool="t4", resource_seconds={GPU: "28800"}),
    ]
    return shown.Usage.model_validate(
        {
            "items": rows,
            "from": NOW - timedelta(hours=1),
            "to": NOW,
            "completeSince": NOW - timedelta(minutes=30) if lost else None,
        }
    )


def simulation() -> shown.Simulation:
    """What a weight of 3 would do to team-a."""

    def foreseen(share: str, started: int, mean: float) -> shown.Foreseen:
        return shown.Foreseen(
            share=share,
            pending=240,
            started=started,
            wait_mean_seconds=mean,
            wait_p90_seconds=3 * mean,
        )

    return shown.Simulation(
        pods=412,
        hours=4.0,
        seconds=1.26,
        assumed="Run times as those of pods that finished in the last day.",
        tenants=[
            shown.TenantForeseen(
                tenant="team-a",
                weight_now="2",
                weight_then="3",
                now=foreseen("0.5", 180, 2700.0),
                then=foreseen("0.6", 216, 1500.0),
            ),
            shown.TenantForeseen(
                tenant="team-b",
                weight_now="1",
                weight_then="1",
                now=foreseen("0.25", 60, 600.0),
                then=foreseen("0.2", 48, 900.0),
            ),
        ],
    )
