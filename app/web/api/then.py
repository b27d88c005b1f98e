"""Quotas in force at a time: those of now, and back along the audit chain."""

from __future__ import annotations

import asyncio

from app.api_ports import QuotaThen
from app.audit_ports import Lines
from app.core.accounts.past import Past, Terms
from app.core.audit import Entry
from app.core.chain.audit_lines import read
from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, Quota
from app.web.api.entries import beginning, time_of, walk
from app.web.api.texts import decimal, quantities, stamp
from app.web.problems import Refused
from app.web.view import View

AT_ONCE = 2
"""Callers who are answered at a time."""


class ToldQuotas:
    """`api_ports.PastQuotas` by what the audit chain tells."""

    def __init__(self, chain: Lines, view: View) -> None:
        self._chain = chain
        self._view = view
        # It may take a walk through all of the chain, and every page is a walk of its own.
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def quotas_at(self, at: Millis) -> list[QuotaThen]:
        """Return the quotas that were in force, by tenant and pool.

        Raises Refused (422) for a time of which the chain does not tell.
        """
        async with self._turn:
            return await self._quotas_at(at)

    async def _quotas_at(self, at: Millis) -> list[QuotaThen]:
        last = (await self._chain.ending()).last.number
        await self._need_chain(at)
        past, tenants = Past(at), dict(self._view.tenancy.tenants)
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
            why = f"at: the audit chain {since}; what was in force before that nobody can tell."
            raise Refused(422, why)


def _rows(terms: Terms) -> list[QuotaThen]:
    """Return the quotas of a tenant; of one that had none, a row without a pool for its weight."""
    weight, parent = decimal(terms.weight), terms.parent
    return [
        QuotaThen(
            terms.name, parent, weight, pool, quantities(quota.guarantee), quantities(quota.limit)
        )
        for pool, quota in terms.quotas.items() or [(PoolName(""), Quota())]
    ]
