"""What the REST API takes and shows of a write: all of a resource, and what a change would do."""

from __future__ import annotations

from pydantic import ConfigDict

from app.web.api.shown import PoolSpec, Shown, TenantSpec


class TenantWritten(TenantSpec):
    """A tenant as the API server has it now; how it stands follows a moment later."""

    model_config = ConfigDict(extra="ignore")

    name: str


class PoolWritten(PoolSpec):
    """A pool as the API server has it now; how it stands follows a moment later."""

    model_config = ConfigDict(extra="ignore")

    name: str


class ShareChange(Shown):
    """What part of the cluster a tenant, or a user of it, is owed if everybody asks: 0 to 1.

    `before` null: it is new; `after` null: it is gone.
    """

    tenant: str
    user: str | None
    before: str | None
    after: str | None


class TenantChange(Shown):
    """What a write would do; nothing was written. `before` null: new; `after` null: deleted."""

    before: TenantWritten | None
    after: TenantWritten | None
    shares: list[ShareChange]


class PoolChange(Shown):
    """What a write would do; nothing was written. `before` null: new; `after` null: deleted."""

    before: PoolWritten | None
    after: PoolWritten | None
