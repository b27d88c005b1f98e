"""All that a forecast needs of an engine: how things stand, as values that can be sent elsewhere.

What only time shows is not here: how long work runs, and who comes next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.core.asks.annotations import LARGEST_GANG
from app.core.asks.groups import ASKED
from app.core.fair.branch import Branch, Leaf
from app.core.fair.checkpoint import Checkpoint, Kept, worth_keeping
from app.core.fair.order import likely
from app.core.fair.tenancy import Tenancy
from app.core.fair.usage import ITSELF
from app.core.model import (
    Bystander,
    Millis,
    Node,
    Phase,
    Pod,
    Pool,
    Tenant,
    TenantName,
    UserName,
)
from app.core.places.fragmentation import Sample
from app.core.places.pools import Pools
from app.core.pods.life import Life
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.policy import Policy
from app.core.resources import ManagedResources


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand at a time. No pool at all: every node is in the one pool there is.

    Pods are charged as they are now, their claims counted. `held` are those behind the gate,
    `running` those past it: `started` is when their use began, `pool` and `node` where they are
    counted. `turns` are the turns and the history of every tenant and user, `sample` the kinds of
    pods that the leader packs for.
    """

    at: Millis
    epoch: int
    managed: ManagedResources
    policy: Policy
    nodes: tuple[Node, ...]
    bystanders: tuple[Bystander, ...]
    pools: tuple[Pool, ...]
    tenants: tuple[Tenant, ...]
    held: tuple[Pod, ...]
    running: tuple[Pod, ...]
    turns: Mapping[TenantName, Checkpoint]
    sample: Sample


def snapshot(
    at: Millis, roster: Roster, tenancy: Tenancy, pools: Pools, managed: ManagedResources
) -> Snapshot:
    """Return how things stand, if nothing happened from the last event until then."""
    usage = roster.usage
    now = max(at, usage.now)
    turns = _turns(roster, now)
    served = [
        kept.served[0] for each in turns.values() for kept in (each.own, *each.users.values())
    ]
    nodes, bystanders = pools.contents()
    written = tuple(pool for name, pool in sorted(pools.pools.items()) if pools.is_written(name))
    asking = [t for t in roster.pods.values() if t.pod.asks]
    return Snapshot(
        at=now,
        epoch=max(likely([*served, *(t.stamp[0] for t in roster.pods.values())]), 0),
        managed=managed,
        policy=usage.policy,
        nodes=nodes,
        bystanders=bystanders,
        pools=written,
        tenants=tuple(tenancy.tenants[name] for name in sorted(tenancy.tenants)),
        held=tuple(_held(t) for t in asking if t.life is Life.HELD),
        running=tuple(_running(t, now) for t in asking if t.life is not Life.HELD),
        turns=turns,
        sample=pools.mix.drawn(),
    )


def _held(tracked: Tracked) -> Pod:
    """Return a pod that waits, with its claims counted and the size of its gang as it is now."""
    pod, gang = tracked.pod, tracked.gang
    if pod.gang and gang is None:
        pod = replace(pod, gang="")  # one too many
    elif gang is not None and pod.gang_size != gang.need:
        pod = replace(pod, gang_size=gang.need if gang.size != ASKED else LARGEST_GANG)
    return pod if pod.plain is None else replace(pod, claims=(), plain=None)


def _running(tracked: Tracked, now: Millis) -> Pod:
    """Return a pod that counts as used, as if its release had been answered and it were bound."""
    pod, intent = _held(tracked), tracked.intent
    running = replace(
        pod,
        gates=(),
        release=pod.release if intent is None else f"{intent.epoch}.{intent.sequence}",
        node=tracked.node or pod.node,
        pool=tracked.pool or pod.pool,
        phase=Phase.RUNNING,
        started=now if tracked.released is None else tracked.released,
    )
    return pod if running == pod else running


def _turns(roster: Roster, now: Millis) -> dict[TenantName, Checkpoint]:
    """Return when everybody was last served, and what they remember by now."""
    usage = roster.usage
    half_life, tree = usage.policy.half_life, usage.tree
    found: dict[TenantName, dict[UserName, Kept]] = {
        name: {
            user: Kept(past.served, worth_keeping(past.faded(now, half_life)))
            for user, past in users.items()
        }
        for name, users in usage.past.items()
    }
    for name, branch in tree.tenants.items():
        users = found.setdefault(name, {})
        users[ITSELF] = Kept(branch.served, worth_keeping(tree.history(branch, now)))
        for leaf in _users(branch):
            users[UserName(leaf.name)] = Kept(leaf.served, worth_keeping(tree.history(leaf, now)))
    return {
        name: Checkpoint(now, 0, users.pop(ITSELF, Kept()), users) for name, users in found.items()
    }


def _users(branch: Branch) -> list[Leaf]:
    return [child for child in branch.children.values() if isinstance(child, Leaf)]
