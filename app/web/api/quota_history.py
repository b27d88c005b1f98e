"""Quotas at a past time: the current ones, with all later changes in the audit chain undone."""

from __future__ import annotations

import asyncio

from app.core.audit.codec import parse_line
from app.core.audit.quota_history import QuotaHistory, QuotaTerms
from app.core.audit_entry import Entry
from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, Quota
from app.ports.api import QuotaThen
from app.ports.audit import AuditReader, iterate_lines
from app.web.api.audit_reader import entry_time, find_start_number
from app.web.api.formatting import decimal, format_time, quantities
from app.web.api.refused import Refused
from app.web.webhook.cache import WebhookCache

AT_ONCE = 2
"""Most requests that are answered at the same time."""


class AuditedQuotas:
    """`ports.api.PastQuotas` on the audit chain."""

    def __init__(self, chain: AuditReader, view: WebhookCache) -> None:
        self._chain = chain
        self._view = view
        # Each page of an answer may read the whole chain.
        self._semaphore = asyncio.Semaphore(AT_ONCE)

    async def quotas_at(self, at: Millis) -> list[QuotaThen]:
        """Return the quotas at that time, by tenant and pool.

        Raises Refused (422) if the chain does not cover the time.
        """
        async with self._semaphore:
            return await self._quotas_at(at)

    async def _quotas_at(self, at: Millis) -> list[QuotaThen]:
        last = (await self._chain.read_tail()).last_head.number
        await self._require_chain(at)
        past, tenants = QuotaHistory(at), dict(self._view.tenancy.tenants)
        async for number, text in iterate_lines(
            self._chain, await find_start_number(self._chain, at, last), last
        ):
            try:
                entry = parse_line(text)
                if isinstance(entry, Entry):
                    past.add_entry(entry)
            except InvalidInput as error:
                why = f"at: entry {number} of the audit chain does not help: {error}"
                raise Refused(422, why) from error
        return [row for terms in past.quota_terms(tenants) for row in _rows(terms)]

    async def _require_chain(self, at: Millis) -> None:
        first = await self._chain.read_lines(0, 1)
        begins = entry_time(first[0][1]) if first else None
        if begins is None or at < begins:
            since = f"begins at {format_time(begins)}" if begins else "is empty"
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
