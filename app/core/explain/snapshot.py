"""Input of a forecast: the engine's state as values that can be sent to another process.

It does not contain future data: run times and later submissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.core.epochs import highest_plausible
from app.core.fairshare.checkpoint import FairnessState, TenantCheckpoint, storable_history
from app.core.fairshare.live_usage import TENANT_ITSELF
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import (
    Millis,
    Node,
    Phase,
    Pod,
    Pool,
    Tenant,
    TenantName,
    UnmanagedPod,
    UserName,
)
from app.core.placement.fragmentation import Sample
from app.core.placement.pools import Pools
from app.core.podspec.annotations import LARGEST_GANG
from app.core.podspec.pod_groups import SIZE_FROM_GROUP
from app.core.policy import Policy
from app.core.quantities import ManagedResources


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of the engine at a time. If there is no pool, all nodes are in one pool.

    Pods have their present charge, claims included. `held` are the held pods, `running` the
    released ones: `started` is the start of their use, `pool` and `node` are where they are
    accounted. `fairness_states` are the last release and the history of every tenant and user.
    `pod_mix` is the pod mix that the leader packs for.
    """

    at: Millis
    epoch: int
    managed: ManagedResources
    policy: Policy
    nodes: tuple[Node, ...]
    unmanaged_pods: tuple[UnmanagedPod, ...]
    pools: tuple[Pool, ...]
    tenants: tuple[Tenant, ...]
    held: tuple[Pod, ...]
    running: tuple[Pod, ...]
    fairness_states: Mapping[TenantName, TenantCheckpoint]
    pod_mix: Sample


def snapshot(
    at: Millis,
    registry: PodRegistry,
    tenancy: TenantDirectory,
    pools: Pools,
    managed: ManagedResources,
) -> Snapshot:
    """Return the state at a time, assuming no change since the last event."""
    usage = registry.usage
    now = max(at, usage.now)
    turns = _fairness_states(registry, now)
    served = [
        kept.last_served[0] for each in turns.values() for kept in (each.own, *each.users.values())
    ]
    nodes, unmanaged_pods = pools.nodes_and_unmanaged_pods()
    written = tuple(
        pool for name, pool in sorted(pools.pools.items()) if pools.has_pool_resource(name)
    )
    asking = [t for t in registry.pods.values() if t.pod.needs_managed]
    return Snapshot(
        at=now,
        epoch=max(
            highest_plausible([*served, *(t.release_id[0] for t in registry.pods.values())]), 0
        ),
        managed=managed,
        policy=usage.policy,
        nodes=nodes,
        unmanaged_pods=unmanaged_pods + registry.leftover_claims.as_unmanaged_pods(),
        pools=written,
        tenants=tuple(tenancy.tenants[name] for name in sorted(tenancy.tenants)),
        held=tuple(_held_pod(t) for t in asking if t.state is PodState.HELD),
        running=tuple(_running_pod(t, now) for t in asking if t.state is not PodState.HELD),
        fairness_states=turns,
        pod_mix=pools.pod_mix.preview_sample(),
    )


def _held_pod(tracked: PodRecord) -> Pod:
    """Return a held pod with its claims counted and the present size of its gang."""
    pod, gang = tracked.pod, tracked.gang
    if gang is not None and gang.name != pod.gang:
        pod = replace(pod, gang=gang.name, replicated_job="")  # a replicated job of a JobSet
    if pod.gang and gang is None:
        pod = replace(pod, gang="")  # beyond the gang size
    elif gang is not None and gang.is_elastic:
        pod = replace(pod, gang_size=gang.size, gang_min_count=gang.required)
    elif gang is not None and pod.gang_size != gang.required:
        pod = replace(
            pod, gang_size=gang.required if gang.size != SIZE_FROM_GROUP else LARGEST_GANG
        )
    if pod.container_requests is None:
        return pod
    # The rules for a claim that is being freed need its users, and the pods have no claims here.
    return replace(pod, claims=(), container_requests=None, claim_refusal="")


def _running_pod(tracked: PodRecord, now: Millis) -> Pod:
    """Return a pod that counts as used, as if its release were answered and it were bound."""
    pod, intent = _held_pod(tracked), tracked.intent
    release = pod.release_annotation if intent is None else f"{intent.epoch}.{intent.sequence}"
    node, pool = tracked.node or pod.node, tracked.pool or pod.pool
    started = now if tracked.released_at is None else tracked.released_at
    wanted = (), release, node, pool, Phase.RUNNING, started
    if (pod.gates, pod.release_annotation, pod.node, pod.pool, pod.phase, pod.started_at) == wanted:
        return pod  # a copy takes most of the time, and blocks the answers of an API replica
    return replace(
        pod,
        gates=(),
        release_annotation=release,
        node=node,
        pool=pool,
        phase=Phase.RUNNING,
        started_at=started,
    )


def _fairness_states(registry: PodRegistry, now: Millis) -> dict[TenantName, TenantCheckpoint]:
    """Return the last release and the decayed history of every tenant and user."""
    usage = registry.usage
    half_life, tree = usage.policy.half_life, usage.tree
    found: dict[TenantName, dict[UserName, FairnessState]] = {
        name: {
            user: FairnessState(past.last_served, storable_history(past.decayed(now, half_life)))
            for user, past in users.items()
        }
        for name, users in usage.saved_history.items()
    }
    for name, branch in tree.tenants.items():
        users = found.setdefault(name, {})
        users[TENANT_ITSELF] = FairnessState(
            branch.last_served, storable_history(tree.decayed_history(branch, now))
        )
        for leaf in _users(branch):
            users[UserName(leaf.name)] = FairnessState(
                leaf.last_served, storable_history(tree.decayed_history(leaf, now))
            )
    return {
        name: TenantCheckpoint(now, 0, users.pop(TENANT_ITSELF, FairnessState()), users)
        for name, users in found.items()
    }


def _users(branch: TenantNode) -> list[UserNode]:
    return [child for child in branch.children.values() if isinstance(child, UserNode)]
