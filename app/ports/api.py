"""Protocols and values that the routes of the REST API need, except forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis


@dataclass(frozen=True, slots=True)
class QuotaThen:
    """Quota of a tenant in a pool at a past time. Amounts are Kubernetes quantities."""

    tenant: str
    parent: str | None
    weight: str
    pool: str
    guarantee: Mapping[str, str]
    limit: Mapping[str, str]


class PastQuotas(Protocol):
    """Quotas at past times. May raise StoreError."""

    async def quotas_at(self, at: Millis) -> Sequence[QuotaThen] | None:
        """Return the quotas at `at` by tenant and pool, or None if records do not reach back."""


class LeaderStateStore(Protocol):
    """Leader state for the other replicas. All methods raise StoreError."""

    async def store_message(self, leader_message: LeaderStateMessage) -> None:
        """Replace the last message, unless the stored one has a later epoch."""

    async def read_message(self) -> LeaderStateMessage | None:
        """Return the last message, or None if there is no message."""


@dataclass(frozen=True, slots=True)
class EnforcementResult:
    """The last result of the enforcement probes, which a webhook replica runs every `seconds`.

    `holes`: by failed check, how enforcement does not work. `seconds` 0: the probes are off.
    `last_heartbeat`: the last report of a replica that it works; 0: no replica has reported it.
    """

    at: Millis
    seconds: float
    holes: Mapping[str, str] = field(default_factory=dict)
    last_heartbeat: Millis = field(default=Millis(0))


class EnforcementResults(Protocol):
    """The result of the enforcement probes for other replicas. All methods raise StoreError."""

    async def store_result(self, result: EnforcementResult) -> None:
        """Replace the last result, but not its `last_heartbeat`."""

    async def record_heartbeat(self, at: Millis) -> None:
        """Replace `last_heartbeat` alone: a webhook replica works at this time."""

    async def read_result(self) -> EnforcementResult | None:
        """Return the last result, or None if there is no result."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A Tenant or Pool as stored in the API server. `spec` is its JSON.

    `edition` changes with the spec and not with the status. `version` is the resourceVersion,
    `document` the whole object.
    """

    name: str
    edition: str
    version: str
    spec: Mapping[str, Any]
    document: Mapping[str, Any]


class TenantsAndPools(Protocol):
    """Reads Tenants and Pools, and writes them on behalf of a user.

    `kind` is `tenants` or `pools`. May raise ClusterError, or WriteRefused if the write is not
    allowed. With `dry_run` the API server checks the request and stores no change.
    """

    async def read(self, kind: str, name: str) -> Stored | None:
        """Return the current object, or None if it does not exist."""

    async def write(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        by: str,
        before: Stored | None,
        dry_run: bool = False,
    ) -> Stored | None:
        """Replace the spec of `before`, or create the object if `before` is None.

        Returns the stored object. Returns None, without a write, if the object changed since
        `before` or does not exist. `by` is the user that requested the write.
        """

    async def delete(self, kind: str, before: Stored, by: str, dry_run: bool = False) -> bool:
        """Delete the object. Return False if it changed since `before`."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes event of a pod: its last time, and how often it was sent by `source`."""

    at: Millis
    reason: str
    message: str
    source: str
    warning: bool
    count: int


class EventList(NamedTuple):
    """Events, newest first. `is_cut`: there are others, not all of them older."""

    items: Sequence[PodEvent]
    is_cut: bool


class PodEvents(Protocol):
    """Reads the events of pods. May raise ClusterError."""

    async def read_pod_events(self, namespace: str, name: str, limit: int) -> EventList:
        """Return at most `limit` events, the newest of those read.

        They are of all pods that had this name in this namespace.
        """


@dataclass(frozen=True, slots=True)
class FrontProxySettings:
    """Front-proxy settings of the API server: its client CA and its identity headers.

    `ca` (PEM) signs its client certificate. `allowed_names` are the allowed common names, empty for
    any. The other fields are header names, or header prefixes (`extra_prefixes`).
    """

    ca: bytes = b""
    allowed_names: tuple[str, ...] = ()
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()
