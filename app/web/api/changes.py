"""Carries out a write of a Tenant or Pool as its caller's deed: rights first, then the write.

Asks in the caller's name, writes as Fairgate. What may be stored is the API server's to judge.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.api_ports import Resources, Stored
from app.audit_ports import Reporter
from app.core.admission.grants import Grant, Spec, above, grants, meaning
from app.core.audit import Deed
from app.core.errors import ClusterUnavailable
from app.ports import Identity
from app.web.access import Access
from app.web.editions import Conditions
from app.web.problems import Refused

KINDS = {"tenants": "Tenant", "pools": "Pool"}
TRIES = 5
"""How often a write is tried, if others write at the same time."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller wants done to which object, and under which conditions."""

    caller: Identity
    kind: str
    name: str
    conditions: Conditions
    dry_run: bool = False

    @property
    def what(self) -> str:
        """Return what to call it to people."""
        return f"{self.kind.removesuffix('s')} {self.name}"


Edit = Callable[[Spec | None], Spec | None]
Permit = Callable[[Wish, Spec | None, Spec | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was there, and what is there now; with a dry run, what would be."""

    before: Stored | None
    after: Stored | None


class Changes:
    """Writes for callers. Each raises Refused, or ClusterError. See the module."""

    def __init__(self, access: Access, resources: Resources, reporter: Reporter) -> None:
        self._access = access
        self._resources = resources
        self._reporter = reporter

    async def replace(self, wish: Wish, spec: Spec) -> Outcome:
        """Put a spec in place of what there is, or make it."""
        return await self._write(wish, lambda _: spec, self._permit)

    async def reweigh(self, wish: Wish, weight: str) -> Outcome:
        """Weigh a tenant that there is."""

        async def permit(wish: Wish, before: Spec | None, _: Spec | None) -> None:
            await self._need(wish, above(before))

        return await self._write(wish, _if_any(lambda old: {**old, "weight": weight}), permit)

    async def weigh_user(self, wish: Wish, user: str, weight: str) -> Outcome:
        """Weigh a user of a tenant that there is."""

        async def permit(wish: Wish, *_: Spec | None) -> None:
            await self._need(wish, Grant(wish.name, "users"))

        return await self._write(wish, _if_any(lambda old: _with_user(old, user, weight)), permit)

    async def delete(self, wish: Wish) -> Outcome:
        """Delete what there is."""
        for _ in range(TRIES):
            before = await self._find(wish)
            await self._permit(wish, before.spec if before else None, None)
            wish.conditions.check(wish.what, before)
            if before is None:
                raise _absent(wish)
            if await self._delete(wish, before):
                if not wish.dry_run:
                    self._tell(wish, before)
                return Outcome(before, None)
        raise _contended(wish)

    def _tell(self, wish: Wish, before: Stored) -> None:
        """Have the audit chain name the caller: what is gone carries no name."""
        facts = {"kind": KINDS[wish.kind], "name": before.name, "by": wish.caller.name}
        self._reporter.report(Deed.DELETED, facts)

    async def _write(self, wish: Wish, edit: Edit, permit: Permit) -> Outcome:
        """Store what `edit` makes of what there is, once it may be; None: there is nothing to edit.

        Rights come first, so that who has none learns nothing.
        """
        for _ in range(TRIES):
            before = await self._find(wish)
            was = before.spec if before else None
            after = edit(was)
            await permit(wish, was, after)
            wish.conditions.check(wish.what, before)
            if after is None:
                raise _absent(wish)
            if was is not None and meaning(was) == meaning(after):
                return Outcome(before, before)
            if stored := await self._store(wish, after, before):
                return Outcome(before, stored)
        raise _contended(wish)

    async def _permit(self, wish: Wish, before: Spec | None, after: Spec | None) -> None:
        """Raise Refused (403) unless the caller has every right that a change needs."""
        caller, access = wish.caller, self._access
        if wish.kind == "pools":
            verb = "delete" if after is None else "update" if before is not None else "create"
            await access.need(caller, verb, "pools", name=wish.name)
            return
        needed = grants(wish.name, before, after)
        for grant in needed:
            await self._need(wish, grant)
        # As the API server asks whoever comes by kubectl: who governs the parent does not thereby
        # make tenants, which may name any namespace that is free, nor end those below it.
        if before is None:
            await access.need(caller, "create", "tenants")
        elif after is None:
            await access.need(caller, "delete", "tenants", name=wish.name)
        if not needed and not await access.may(caller, "update", "tenants", "users", wish.name):
            await self._need(wish, above(before))

    async def _need(self, wish: Wish, grant: Grant) -> None:
        caller, access = wish.caller, self._access
        if grant.name not in ("", wish.name):
            # Whose parent this is, is told only to who may see it.
            if await access.may(caller, "update", "tenants", grant.subresource, grant.name):
                return
            if not await access.may(caller, "get", "tenants", name=wish.name):
                raise Refused(403, f"{caller.name} may not update tenants.fairgate.io; ask for it.")
        await access.need(caller, "update", "tenants", grant.subresource, grant.name)

    async def _find(self, wish: Wish) -> Stored | None:
        if not _NAME.fullmatch(wish.name):
            return None
        return await self._resources.read(wish.kind, wish.name)

    async def _store(self, wish: Wish, after: Spec, before: Stored | None) -> Stored | None:
        if not _NAME.fullmatch(wish.name):
            raise Refused(
                422,
                f"{wish.name[:80]!r} cannot be a name: lower case letters, digits, - and . may be "
                "in one, at most 253.",
            )
        by, dry_run = wish.caller.name, wish.dry_run
        try:
            return await self._resources.write(wish.kind, wish.name, after, by, before, dry_run)
        except ClusterUnavailable as error:
            raise _unknown(wish) from error

    async def _delete(self, wish: Wish, before: Stored) -> bool:
        try:
            return await self._resources.delete(wish.kind, before, wish.caller.name, wish.dry_run)
        except ClusterUnavailable as error:
            raise _unknown(wish) from error


def _if_any(edit: Callable[[Spec], Spec]) -> Edit:
    return lambda old: None if old is None else edit(old)


def _with_user(spec: Spec, user: str, weight: str) -> Spec:
    weights = {each["name"]: each for each in spec.get("users") or ()}
    weights[user] = {"name": user, "weight": weight}
    return {**spec, "users": list(weights.values())}


def _absent(wish: Wish) -> Refused:
    return Refused(404, f"There is no {wish.what}; GET /v1/{wish.kind} lists them.")


def _contended(wish: Wish) -> Refused:
    return Refused(409, f"{wish.what} is being changed by others as well; try again.")


def _unknown(wish: Wish) -> Refused:
    return Refused(
        503,
        f"The API server did not answer, so it is not known whether {wish.what} was changed; read "
        "it, and try again if need be.",
    )
