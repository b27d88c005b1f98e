"""Publishes what the engine holds: the status of Tenants and Pools, and the metrics of shares.

At most once a second, and only what changed. It reads the engine's view and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from app.control.patience import Patience
from app.core.engine import Engine
from app.core.errors import ClusterError
from app.core.model import Amounts, Millis, PoolName, Resource
from app.core.resources import render
from app.core.views import PoolView, TenantView, View
from app.ports import Meters, StatusWriter

PERIOD_SECONDS = 1.0

log = logging.getLogger("fairgate.control")


@dataclass(frozen=True, slots=True)
class Ready:
    """The condition `Ready`: whether the object is in force, a reason in one word, a sentence."""

    holds: bool
    reason: str
    message: str

    def condition(self) -> dict[str, object]:
        """Return it as the API conventions write it, without times."""
        status = "True" if self.holds else "False"
        words = {"reason": self.reason, "message": self.message}
        return {"type": "Ready", "status": status, **words}


@dataclass(frozen=True, slots=True)
class Status:
    """What the status of one object should say."""

    fields: Mapping[str, object]
    ready: Ready
    generation: int


class Publisher:
    """Publishes while `leads()` says so."""

    def __init__(
        self,
        engine: Engine,
        writer: StatusWriter,
        meters: Meters,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._meters = meters
        self._leads = leads
        self._clock = clock
        self._published: dict[tuple[str, str], Status] = {}
        self._turned: dict[tuple[str, str], Millis] = {}
        self._patience = Patience()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            if not self._leads():
                self._published.clear()
                continue
            view = self._engine.outlook.view()
            outlook = self._engine.outlook
            self._meters.shares(view)
            self._meters.pressing(view, outlook.pressure(), outlook.fragmentation())
            self._meters.drifted(self._engine.drift.ratio)
            statuses = self._statuses(view)
            self._published = {k: s for k, s in self._published.items() if k in statuses}
            self._turned = {k: at for k, at in self._turned.items() if k in statuses}
            await self._publish({k: s for k, s in statuses.items() if self._published.get(k) != s})

    async def _publish(self, statuses: Mapping[tuple[str, str], Status]) -> None:
        """Write these; at the first failure leave the server alone for a while."""
        for key, status in statuses.items():
            if not self._leads():
                return
            kind, name = key
            try:
                await self._writer.write_status(kind, name, self._stamped(key, status))
            except ClusterError as error:
                wait = self._patience.after(error)
                facts = {"kind": kind, "object": name, "why": str(error), "seconds": wait}
                log.warning("status not published; tried again later", extra=facts)
                await asyncio.sleep(wait)
                return
            self._patience.fulfilled()
            self._published[key] = status

    def _statuses(self, view: View) -> dict[tuple[str, str], Status]:
        known = {r for pool in view.pools.values() for r in pool.capacity}
        statuses = {
            ("tenants", str(name)): _tenant_status(tenant, known)
            for name, tenant in view.tenants.items()
            if tenant.exists
        }
        return statuses | {
            ("pools", str(name)): _pool_status(pool)
            for name, pool in view.pools.items()
            if pool.exists
        }

    def _stamped(self, key: tuple[str, str], status: Status) -> dict[str, object]:
        """Return the status with its condition in the form of the API conventions."""
        before = self._published.get(key)
        if before is None or before.ready.holds != status.ready.holds:
            self._turned[key] = self._clock()
        turned = datetime.fromtimestamp(self._turned[key] / 1000, UTC)
        since = turned.strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {**status.ready.condition(), "lastTransitionTime": since}
        observed = {"observedGeneration": status.generation}
        return {**status.fields, **observed, "conditions": [{**condition, **observed}]}


def _tenant_status(tenant: TenantView, known: set[Resource]) -> Status:
    taken = f"an older tenant already has: {', '.join(tenant.disputed)}"
    if tenant.orphan:
        also = f"; {taken}" if tenant.disputed else ""
        message = f"its parent does not exist or closes a circle{also}"
        ready = Ready(False, "ParentMissing", message)
    elif tenant.disputed:
        ready = Ready(False, "NamespaceTaken", taken)
    elif tenant.paused:
        ready = Ready(False, "Paused", "nothing of it is released")
    else:
        ready = Ready(True, "InForce", "counts in the fair order")
    shown = known.union(*tenant.used.values())
    fields = {
        "share": f"{float(tenant.share):.3f}",
        "used": _quantities(_sum(tenant.used, shown)),
        "borrowed": _quantities(_sum(tenant.borrowed, shown)),
        "pending": tenant.pending,
        # Coarse, because it decays all the time and every change is a write to the API server.
        "history": f"{tenant.history:.2f}",
    }
    return Status(fields, ready, tenant.generation)


def _pool_status(pool: PoolView) -> Status:
    free = {r: v - pool.used.get(r, 0) for r, v in pool.capacity.items()}
    if pool.overlapping:
        ready = Ready(False, "Overlap", "it claims nodes of a pool before it by name")
    elif pool.paused:
        ready = Ready(False, "Paused", "nothing is released into it")
    elif not pool.nodes:
        ready = Ready(False, "NoNodes", "no node matches its nodeSelector")
    else:
        ready = Ready(True, "InForce", "pods are released into it")
    used = {r: pool.used.get(r, 0) for r in pool.capacity}
    fields = {
        "capacity": _quantities(pool.capacity),
        "used": _quantities(used),
        "free": _quantities(free),
        "nodes": pool.nodes,
    }
    return Status(fields, ready, pool.generation)


def _sum(pools: Mapping[PoolName, Amounts], shown: set[Resource]) -> dict[Resource, int]:
    """Return the amounts of all pools together, of each of these resources."""
    return {r: sum(amounts.get(r, 0) for amounts in pools.values()) for r in shown}


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {str(r): render(r, v) for r, v in sorted(amounts.items())}
