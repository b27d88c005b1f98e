"""The leader's copy of queues and usage, computed from an engine at each call."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.engine import Engine
from app.core.errors import StoreError
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.model import TenantName, UserName
from app.ports.store import PendingCount, UsedAmount
from tests.fakes.fake_store import Contents


class FakeQueues:
    """`ports.store.QueueReader`. `error`: each call raises it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: StoreError | None = None

    async def read_pending_counts(self, tenant: TenantName | None) -> tuple[PendingCount, ...]:
        return self._contents().pending(tenant)

    async def read_used_amounts(self, tenant: TenantName | None) -> tuple[UsedAmount, ...]:
        return self._contents().used(tenant)

    async def read_page(
        self, tenant: TenantName, users: Sequence[UserName], after: PageMark | None, limit: int
    ) -> tuple[QueueRow, ...]:
        return self._contents().page(tenant, users, after, limit)

    def _contents(self) -> Contents:
        if self.error is not None:
            raise self.error
        return Contents.of(self.engine.store_writes())
