"""Quotas in force at a time: those of now, and back along the audit chain."""

from __future__ import annotations

from app.core.audit import Entry
from app.core.audit_lines import read
from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.past import Owed, Past
from app.web.api.entries import beginning, time_of, walk
from app.web.api.ground import Ground
from app.web.api.shown import QuotaRow
from app.web.api.texts import decimal, moment, quantities
from app.web.problems import Refused


async def quotas_then(ground: Ground, at: Millis) -> list[QuotaRow]:
    """Return the quotas that were in force at a time, by tenant and pool.

    Raises Refused (422) for a time of which the audit chain does not tell.
    """
    if at > ground.now():
        raise Refused(422, "at: this is in the future; what will be in force nobody knows.")
    last = (await ground.chain.ending()).last.number
    await _need_chain(ground, at)
    past = Past(at)
    tenants = dict(ground.view.tenancy.tenants)
    async for number, text in walk(ground.chain, await beginning(ground.chain, at, last), last):
        try:
            entry = read(text)
            if not isinstance(entry, Entry):
                raise InvalidInput("it is no entry")
        except InvalidInput as error:
            raise Refused(
                422, f"Entry {number} of the audit chain is not legible: {error}."
            ) from error
        try:
            past.see(entry)
        except InvalidInput as error:
            raise Refused(422, f"at: {error}") from error
    return [row for owed in past.owed(tenants) for row in _rows(owed)]


async def _need_chain(ground: Ground, at: Millis) -> None:
    first = await ground.chain.lines(0, 1)
    begins = time_of(first[0][1]) if first else None
    if begins is None or at < begins:
        since = "is empty" if begins is None else f"begins at {moment(Millis(begins)).isoformat()}"
        raise Refused(
            422, f"at: the audit chain {since}: what was in force before nobody can tell."
        )


def _rows(owed: Owed) -> list[QuotaRow]:
    return [
        QuotaRow(
            tenant=owed.name,
            parent=owed.parent,
            weight=decimal(owed.weight),
            pool=pool,
            guarantee=quantities(quota.guarantee),
            limit=quantities(quota.limit),
            used=None,
            borrowed=None,
            pending=None,
            weighted_share=None,
        )
        for pool, quota in owed.quotas.items()
    ]
