"""Publishes the status of Tenants and Pools, and the metrics of shares.

It reads the engine's view at most once a second, and writes only changed statuses. If only amounts
have changed, it writes every ten seconds at most: otherwise these writes would cost the API server
of a busy cluster more than the releases. A tenant that has just reached its `maxPending` is an
exception, because the webhooks learn it from the status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from app.controller.background import run_periodically
from app.controller.status_conditions import ObjectStatus, pool_status, tenant_status
from app.core.engine import Engine
from app.core.errors import ClusterError, ClusterRefused
from app.core.explain.views import ClusterView
from app.core.model import Millis, PoolName
from app.core.retry import Backoff, ServerBackoff
from app.ports.cluster import StatusWriter, StoredStatus
from app.ports.metrics import LeaderMetrics

PERIOD_SECONDS = 1.0
AMOUNTS_PERIODS = 10
"""Least number of periods between two writes of an object, if only amounts change."""

MOST_PERIODS = 30
"""Most periods until a status without an answer is written again. They double from one."""

REFUSED_DELAY_MS = 500
"""Time until a refused status is written again. It doubles with each further refusal, to 32 s."""

log = logging.getLogger("fairgate.control")


class _Published(NamedTuple):
    """The last written status of an object, and the number of the period in which it was written.

    `period` None: a later write failed. It may have had an effect, so the object is written again.
    """

    status: ObjectStatus
    period: int | None


class Publisher:
    """Publishes while `leads()` is true."""

    def __init__(
        self,
        engine: Engine,
        writer: StatusWriter,
        metrics: LeaderMetrics,
        leads: Callable[[], bool],
        clock: Callable[[], Millis],
    ) -> None:
        self._engine = engine
        self._writer = writer
        self._metrics = metrics
        self._leads = leads
        self._clock = clock
        self._published: dict[tuple[str, str], _Published] = {}
        self._period = 0
        self._transition_times: dict[tuple[str, str, str], Millis] = {}
        self._stored: dict[str, StoredStatus] | None = None
        """The stored statuses of each kind at the start of the term."""
        self._keys: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        """By object and field: the keys that the stored map may have, since this replica leads."""
        self._unanswered: dict[tuple[str, str], tuple[int, int]] = {}
        """Objects whose last write got no answer: the period, and the number of such writes."""
        self._server_backoff = ServerBackoff()
        self._refused: Backoff[tuple[str, str]] = Backoff()

    async def publish_status(self) -> None:
        """Publish until cancelled."""
        await run_periodically(PERIOD_SECONDS, self._leads, self._publish_changes, self._reset)

    def _reset(self) -> None:
        self._published.clear()
        self._refused.clear()
        self._keys.clear()
        self._unanswered.clear()
        self._stored = None

    async def _publish_changes(self) -> None:
        queries = self._engine.queries
        view, fragmentation = queries.view(), queries.fragmentation()
        self._metrics.set_shares(view)
        self._metrics.set_backlog(view, queries.backlog_by_tenant(), fragmentation)
        self._metrics.set_drift(self._engine.drift.ratio)
        statuses = self._statuses(view, fragmentation)
        by_object: tuple[dict[tuple[str, str], Any], ...]
        by_object = (self._published, self._keys, self._unanswered)
        for known in by_object:
            for key in known.keys() - statuses.keys():
                del known[key]
        for key in set(self._refused) - statuses.keys():
            self._refused.clear_failures(key)
        self._transition_times = {
            k: at for k, at in self._transition_times.items() if k[:2] in statuses
        }
        self._period += 1
        if self._stored is None and not await self._read_stored():
            return
        delayed = self._refused.active_delays(self._clock())
        due = {k: s for k, s in statuses.items() if k not in delayed and self._is_due(k, s)}
        await self._publish(due)

    def _is_due(self, key: tuple[str, str], status: ObjectStatus) -> bool:
        before = self._published.get(key)
        period, times = self._unanswered.get(key, (0, 0))
        if times and self._period - period < min(1 << (times - 1), MOST_PERIODS):
            return False
        if before is None or before.period is None:
            return True
        if before.status == status:
            return False
        if status.is_at_max_pending and not before.status.is_at_max_pending:
            return True
        amounts = replace(
            before.status, fields=status.fields, is_at_max_pending=status.is_at_max_pending
        )
        has_only_new_amounts = amounts == status
        return not has_only_new_amounts or self._period - before.period >= AMOUNTS_PERIODS

    async def _read_stored(self) -> bool:
        """Read the stored statuses. The times of conditions stay while they hold.

        Return the success.
        """
        try:
            self._stored = {k: await self._writer.read_status(k) for k in ("tenants", "pools")}
        except ClusterError as error:
            wait = self._server_backoff.next_delay(error)
            facts = {"why": str(error), "seconds": wait}
            log.warning("stored statuses not read; tried again later", extra=facts)
            await asyncio.sleep(wait)
            return False
        self._server_backoff.reset()
        return True

    async def _publish(self, statuses: Mapping[tuple[str, str], ObjectStatus]) -> None:
        """Write statuses. Those without an answer before come last.

        A status that the API server refuses, for example because its object became too large, is
        tried again later, and so is one without an answer. If a second one gets no answer, stop and
        wait for the retry delay.
        """
        unanswered = 0
        for key in sorted(statuses, key=lambda each: self._unanswered.get(each, (0, 0))):
            status = statuses[key]
            if not self._leads():
                return
            kind, name = key
            try:
                fields = self._replace_maps(key, status.fields)
                await self._writer.write_status(kind, name, fields | self._conditions(key, status))
            except ClusterError as error:
                facts = {"kind": kind, "object": name, "why": str(error)}
                log.warning("status not published; tried again later", extra=facts)
                if (before := self._published.get(key)) is not None:
                    self._published[key] = before._replace(period=None)
                if isinstance(error, ClusterRefused) and error.status != 429:
                    self._refused.record_failure(key, self._clock(), REFUSED_DELAY_MS)
                    continue
                _, times = self._unanswered.get(key, (0, 0))
                self._unanswered[key] = self._period, times + 1
                unanswered += 1
                if unanswered == 1:
                    continue
                await asyncio.sleep(self._server_backoff.next_delay(error))
                return
            self._server_backoff.reset()
            self._refused.clear_failures(key)
            self._unanswered.pop(key, None)
            self._published[key] = _Published(status, self._period)
            for field, value in _maps(status.fields).items():
                self._keys[key][field] = frozenset(value)

    def _replace_maps(
        self, key: tuple[str, str], fields: Mapping[str, object]
    ) -> dict[str, object]:
        """Return fields that, merged into the stored ones, remove all former keys of maps."""
        kind, name = key
        stored = self._stored[kind].keys if self._stored else {}
        known = self._keys.setdefault(key, {})
        replaced = dict(fields)
        for field, value in _maps(fields).items():
            former = known.get(field, stored.get((name, field), frozenset()))
            replaced[field] = {**dict.fromkeys(former - value.keys()), **value}
            known[field] = former | value.keys()  # also if the answer gets lost
        return replaced

    def _statuses(
        self, view: ClusterView, fragmentation: Mapping[PoolName, float]
    ) -> dict[tuple[str, str], ObjectStatus]:
        known = {r for pool in view.pools.values() for r in pool.capacity}
        statuses = {
            ("tenants", str(name)): tenant_status(tenant, known)
            for name, tenant in view.tenants.items()
            if tenant.exists
        }
        return statuses | {
            ("pools", str(name)): pool_status(
                pool, view.nodes_without_pool, fragmentation.get(name)
            )
            for name, pool in view.pools.items()
            if pool.exists
        }

    def _conditions(self, key: tuple[str, str], status: ObjectStatus) -> dict[str, object]:
        """Return the conditions in the form of the API conventions, and their generation."""
        published = self._published.get(key)
        before = published.status if published else None
        same = before is not None and before.uid == status.uid
        held = (
            {each.condition_type: each.is_true for each in before.conditions}
            if before and same
            else {}
        )
        observed = {"observedGeneration": status.generation}
        written = []
        for each in status.conditions:
            turned = (*key, each.condition_type)
            if held.get(each.condition_type) is not each.is_true:
                self._transition_times[turned] = self._transition_time(
                    turned, status.uid, each.is_true, new=not same
                )
            since = datetime.fromtimestamp(self._transition_times[turned] / 1000, UTC)
            moment = {"lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
            written.append({**each.to_api(), **moment, **observed})
        return {**observed, "conditions": written}

    def _transition_time(
        self, turned: tuple[str, str, str], uid: str, holds: bool, *, new: bool
    ) -> Millis:
        """Return since when a condition holds. `new`: this replica wrote no status before."""
        kind, name, condition = turned
        stored = self._stored[kind].conditions if new and self._stored else {}
        found = stored.get((name, condition))
        if found is not None and (found.uid, found.holds) == (uid, holds):
            return found.since
        return self._clock()


def _maps(fields: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    return {field: value for field, value in fields.items() if isinstance(value, Mapping)}
