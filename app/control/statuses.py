"""What the status of a Tenant or a Pool says: its fields, and its conditions in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.core.model import Amounts, NodeName, PoolName, Resource
from app.core.resources import render
from app.core.telling.views import PoolView, TenantView

MOST = 4
"""Names in one sentence."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition: its type, whether it is so, a reason in one word, a sentence."""

    kind: str
    holds: bool
    reason: str
    message: str

    def written(self) -> dict[str, object]:
        """Return it as the API conventions write it, without times."""
        status = "True" if self.holds else "False"
        words = {"reason": self.reason, "message": self.message}
        return {"type": self.kind, "status": status, **words}


@dataclass(frozen=True, slots=True)
class Status:
    """What the status of one object should say."""

    fields: Mapping[str, object]
    conditions: tuple[Condition, ...]
    generation: int


def tenant_status(tenant: TenantView, known: set[Resource]) -> Status:
    """Return the status of a tenant; `known` are the resources that any pool has."""
    taken = f"an older tenant already has: {', '.join(tenant.disputed)}"
    if tenant.orphan:
        also = f"; {taken}" if tenant.disputed else ""
        message = f"its parent does not exist or closes a circle{also}"
        ready = _ready(False, "ParentMissing", message)
    elif tenant.disputed:
        ready = _ready(False, "NamespaceTaken", taken)
    elif tenant.paused:
        ready = _ready(False, "Paused", "nothing of it is released")
    else:
        ready = _ready(True, "InForce", "counts in the fair order")
    shown = known.union(*tenant.used.values())
    fields = {
        "share": f"{float(tenant.share):.3f}",
        "used": _quantities(_sum(tenant.used, shown)),
        "borrowed": _quantities(_sum(tenant.borrowed, shown)),
        "pending": tenant.pending,
        # Coarse, because it decays all the time and every change is a write to the API server.
        "history": f"{tenant.history:.2f}",
    }
    return Status(fields, (ready,), tenant.generation)


def pool_status(pool: PoolView, strays: Sequence[NodeName], fragmentation: float | None) -> Status:
    """Return the status of a pool; `strays` are the nodes that are in none at all."""
    free = {r: max(0, v - pool.used.get(r, 0)) for r, v in pool.capacity.items()}
    used = {r: pool.used.get(r, 0) for r in pool.capacity}
    fields = {
        "capacity": _quantities(pool.capacity),
        "used": _quantities(used),
        "free": _quantities(free),
        "nodes": pool.nodes,
        # Coarse, because every change is a write to the API server.
        "fragmentation": None if fragmentation is None else f"{fragmentation:.2f}",
    }
    conditions = (_in_force(pool), _overlap(pool.contested), _left_out(strays))
    return Status(fields, conditions, pool.generation)


def _in_force(pool: PoolView) -> Condition:
    if pool.contested:
        return _ready(False, "Overlap", "it claims nodes of a pool before it by name")
    if pool.paused:
        return _ready(False, "Paused", "nothing is released into it")
    if not pool.nodes and not pool.grows:
        return _ready(False, "NoNodes", "no node matches its nodeSelector")
    return _growing(pool)


def _growing(pool: PoolView) -> Condition:
    """Return the condition of a pool in force: whether new nodes of it come."""
    if pool.closed is not None:
        until = datetime.fromtimestamp(pool.closed / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = (
            "pods released for new nodes were given back, because none came in time; it is filled "
            f"no further than its nodes reach until {until}; see why the autoscaler adds none"
        )
        return _ready(True, "NodesMissing", message)
    if pool.awaiting:
        number = f"{pool.awaiting} pods are" if pool.awaiting > 1 else "1 pod is"
        message = f"{number} released for nodes that the autoscaler may add"
        return _ready(True, "NodesAwaited", message)
    return _ready(True, "InForce", "pods are released into it")


def _overlap(contested: Mapping[NodeName, PoolName]) -> Condition:
    if not contested:
        return Condition("Overlap", False, "Apart", "every node it selects is its own")
    owners = sorted(set(contested.values()))
    message = (
        f"it selects {_some(sorted(contested), 'node')} of pool {' and '.join(owners)}, which "
        "has them; nothing is released into it until its nodeSelector leaves them out"
    )
    return Condition("Overlap", True, "SelectsNodesOfAnother", message)


def _left_out(strays: Sequence[NodeName]) -> Condition:
    if not strays:
        message = "every node that offers a managed resource is in a Pool"
        return Condition("NodesLeftOut", False, "None", message)
    message = (
        f"{_some(strays, 'node')} with managed resources in no Pool, so no pod that is held can "
        "go there; make a Pool for them, or widen the nodeSelector of one"
    )
    return Condition("NodesLeftOut", True, "InNoPool", message)


def _some(names: Sequence[str], what: str) -> str:
    """Return so many things, the first of them by name."""
    more = len(names) - MOST
    shown = ", ".join(names[:MOST]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({shown})"


def _ready(holds: bool, reason: str, message: str) -> Condition:
    return Condition("Ready", holds, reason, message)


def _sum(pools: Mapping[PoolName, Amounts], shown: set[Resource]) -> dict[Resource, int]:
    """Return the amounts of all pools together, of each of these resources."""
    return {r: sum(amounts.get(r, 0) for amounts in pools.values()) for r in shown}


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {str(r): render(r, v) for r, v in sorted(amounts.items())}
