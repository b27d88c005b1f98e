"""Values of the core as the REST API writes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction

from app.core.model import Amounts, Millis, PoolName, Resource
from app.core.resources import GIB, render


def quantities(amounts: Amounts) -> dict[str, str]:
    """Return amounts as Kubernetes writes them, by resource."""
    return {str(r): render(r, v) for r, v in sorted(amounts.items())}


def size(value: int) -> str:
    """Return bytes as a person would write them, exactly."""
    return str(value) if value % GIB else f"{value // GIB}Gi"


def in_pools(amounts: Mapping[PoolName, Amounts]) -> dict[str, dict[str, str]]:
    """Return amounts by pool, and by resource."""
    return {str(pool): quantities(each) for pool, each in sorted(amounts.items())}


def decimals(values: Mapping[Resource, Fraction]) -> dict[str, str]:
    """Return weights by resource."""
    return {key: decimal(value) for key, value in sorted(values.items())}


def decimal(value: Fraction) -> str:
    """Return a weight as it was written; the resources allow decimals of six places at most."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def parts_of_one(value: Fraction) -> str:
    """Return a share."""
    return f"{float(value):.4f}"


def millis(at: datetime) -> Millis:
    """Return a time as the core counts it; without a zone it is UTC."""
    return Millis(round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def stamp(at: Millis) -> str:
    """Return a time as text, RFC 3339."""
    return moment(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(at: Millis) -> datetime:
    """Return a time as people write it."""
    return datetime.fromtimestamp(at / 1000, UTC)
