"""The Protocols behind the REST API: what its routes ask of other rooms, looking ahead aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.core.model import Millis
from app.core.telling.views import Bulletin


@dataclass(frozen=True, slots=True)
class QuotaThen:
    """A tenant's quota in a pool as it was in force at some time; amounts as quantities."""

    tenant: str
    parent: str | None
    weight: str
    pool: str
    guarantee: Mapping[str, str]
    limit: Mapping[str, str]


class PastQuotas(Protocol):
    """Knows which quotas were in force. May raise StoreError."""

    async def quotas_at(self, at: Millis) -> Sequence[QuotaThen] | None:
        """Return them by tenant and pool; None: so far back nothing is kept."""


class Bulletins(Protocol):
    """Where the leader tells the other replicas what only it knows. All raise StoreError."""

    async def post(self, bulletin: Bulletin) -> None:
        """Put this in place of the last one, unless that is of a later epoch."""

    async def read(self) -> Bulletin | None:
        """Return the last one; None: there is none."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A Tenant or Pool as the API server has it; `spec` is its JSON.

    `edition` is another whenever the spec is: a change of status leaves it. `version` is the
    resource version, `document` the whole object.
    """

    name: str
    edition: str
    version: str
    spec: Mapping[str, Any]
    document: Mapping[str, Any]


class Resources(Protocol):
    """Tenants and Pools, read from the API server and written to it in somebody's name.

    `kind` is `tenants` or `pools`. May raise ClusterError; WriteRefused if what is written may not
    be. With `dry_run` all is judged and nothing is stored.
    """

    async def read(self, kind: str, name: str) -> Stored | None:
        """Return it as it is now; None if there is none."""

    async def write(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        by: str,
        before: Stored | None,
        dry_run: bool = False,
    ) -> Stored | None:
        """Put this spec in place of that `before`, or make it anew; return what was stored.

        None: it is no longer what it was before, or not there, and nothing was written. `by` is
        who wants it.
        """

    async def delete(self, kind: str, before: Stored, by: str, dry_run: bool = False) -> bool:
        """Delete it; False if it is no longer what it was before."""


@dataclass(frozen=True, slots=True)
class Front:
    """How the API server shows itself, and whom it speaks for, when it asks us for somebody.

    `ca` (PEM) signs its client certificate, `names` are the common names that may be on it; none:
    any. The others are names of headers, and beginnings of such.
    """

    ca: bytes = b""
    names: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    uids: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
