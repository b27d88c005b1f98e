"""The Protocols behind the REST API: what its routes ask of other rooms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.core.model import Millis, Uid
from app.core.views import Bulletin


@dataclass(frozen=True, slots=True)
class Estimate:
    """In how many seconds from `at` a pod is likely to start: half by `p50`, nine of ten by
    `p90`.
    """

    p50: int
    p90: int
    at: Millis


class Forecasts(Protocol):
    """What is foreseen for pods that wait. Answers at once, from what was foreseen last."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """When it is likely to start; None: it would be a guess."""

    def withheld(self, uid: Uid) -> str:
        """Why there is no estimate, in a sentence."""


class NoForecasts:
    """`Forecasts` where nobody foresees anything."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """Nothing is foreseen."""
        return None

    def withheld(self, uid: Uid) -> str:
        """Why: nobody looked ahead."""
        return "There is no estimate yet."


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
