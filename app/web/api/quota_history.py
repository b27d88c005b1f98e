"""Quotas at a past time: the current ones, with all later changes in the audit chain undone."""

from __future__ import annotations

import asyncio

from app.core.audit.codec import read
from app.core.audit.quota_history import QuotaHistory, QuotaTerms
from app.core.audit_entry import Entry
from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, Quota
from app.ports.api import QuotaThen
from app.ports.audit import AuditReader
from app.web.api.audit_reader import beginning, time_of, walk
from app.web.api.formatting import decimal, quantities, stamp
from app.web.api.refused import Refused
from app.web.webhook.cache import WebhookCache

AT_ONCE = 2
"""Most requests that are answered at the same time."""


class ToldQuotas:
    """`ports.api.PastQuotas` on the audit chain."""

    def __init__(self, chain: AuditReader, view: WebhookCache) -> None:
        self._chain = chain
        self._view = view
        # Each page of an answer may read the whole chain.
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def quotas_at(self, at: Millis) -> list[QuotaThen]:
        """Return the quotas at that time, by tenant and pool.

        Raises Refused (422) if the chain does not cover the time.
        """
        async with self._turn:
            return await self._quotas_at(at)

    async def _quotas_at(self, at: Millis) -> list[QuotaThen]:
        last = (await self._chain.ending()).last.number
        await self._need_chain(at)
        past, tenants = QuotaHistory(at), dict(self._view.tenancy.tenants)
        async for number, text in walk(self._chain, await beginning(self._chain, at, last), last):
            try:
                entry = read(text)
                if isinstance(entry, Entry):
                    past.see(entry)
            except InvalidInput as error:
                why = f"at: entry {number} of the audit chain does not help: {error}"
                raise Refused(422, why) from error
        return [row for terms in past.terms(tenants) for row in _rows(terms)]

    async def _need_chain(self, at: Millis) -> None:
        first = await self._chain.lines(0, 1)
        begins = time_of(first[0][1]) if first else None
        if begins is None or at < begins:
            since = f"begins at {stamp(begins)}" if begins else "is empty"
            why = f"at: the audit chain {since}; the quotas before that time are not recorded."
            raise Refused(422, why)


def _rows(terms: QuotaTerms) -> list[QuotaThen]:
    """Return the quotas of a tenant, or one row with an empty pool if it has no quotas."""
    weight, parent = decimal(terms.weight), terms.parent
    return [
        QuotaThen(
            terms.name, parent, weight, pool, quantities(quota.guarantee), quantities(quota.limit)
        )
        for pool, quota in terms.quotas.items() or [(PoolName(""), Quota())]
    ]
