"""Formats values of the core for the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction

import msgspec
from fastapi import Response

from app.core.model import Amounts, Millis, PoolName, Resource
from app.core.quantities import GIB, format_amount

encode_json = msgspec.json.Encoder().encode


def as_json(body: Mapping[str, object]) -> Response:
    """Return a JSON answer. The caller has already given it the form of its response model."""
    return json_answer(encode_json(body))


def json_answer(body: bytes) -> Response:
    """Return an encoded JSON answer."""
    return Response(body, media_type="application/json")


def quantities(amounts: Amounts) -> dict[str, str]:
    """Return amounts as Kubernetes quantities, by resource."""
    return {str(r): format_amount(r, v) for r, v in sorted(amounts.items())}


def format_bytes(value: int) -> str:
    """Return bytes as an exact quantity, in Gi if possible."""
    return str(value) if value % GIB else f"{value // GIB}Gi"


def quantities_by_pool(amounts: Mapping[PoolName, Amounts]) -> dict[str, dict[str, str]]:
    """Return quantities by pool and resource."""
    return {str(pool): quantities(each) for pool, each in sorted(amounts.items())}


def decimals(values: Mapping[Resource, Fraction]) -> dict[str, str]:
    """Return weights by resource."""
    return {key: decimal(value) for key, value in sorted(values.items())}


def decimal(value: Fraction) -> str:
    """Return a weight as a decimal. The custom resources allow at most six places."""
    return f"{float(value):.6f}".rstrip("0").rstrip(".")


def format_share(value: Fraction) -> str:
    """Return a share, with four places."""
    return f"{float(value):.4f}"


def to_millis(at: datetime) -> Millis:
    """Return milliseconds since the Unix epoch. A time without zone is UTC."""
    return Millis(round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def format_time(at: Millis) -> str:
    """Return a time as RFC 3339 text, with milliseconds."""
    return to_datetime(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_datetime(at: Millis) -> datetime:
    """Return a time as an aware datetime in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC)
