"""What the engine shows of itself: frozen values for status, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from app.core.model import Amounts, PoolName, TenantName


@dataclass(frozen=True, slots=True)
class TenantView:
    """What a tenant uses and waits for, its child tenants included.

    `share` is the dominant share of the whole cluster, `used` managed resources per pool,
    `borrowed` what of that exceeds the guarantee, `history` the decayed dominant share of it,
    `disputed` the namespaces it names that an older tenant has, `orphan` that its parent is
    missing or would close a circle, `exists` that there is a Tenant resource.
    """

    parent: TenantName | None
    weight: Fraction
    share: Fraction
    used: Mapping[PoolName, Amounts]
    borrowed: Mapping[PoolName, Amounts]
    history: float
    pending: int
    generation: int
    disputed: tuple[str, ...]
    orphan: bool
    paused: bool
    exists: bool


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a pool offers and what released pods use of it, in managed resources."""

    capacity: Amounts
    used: Amounts
    nodes: int
    generation: int
    overlapping: bool
    paused: bool
    exists: bool


@dataclass(frozen=True, slots=True)
class View:
    """Every tenant that exists, uses or waits, and every pool."""

    tenants: Mapping[TenantName, TenantView]
    pools: Mapping[PoolName, PoolView]
