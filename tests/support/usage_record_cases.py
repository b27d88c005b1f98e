"""A usage record for tests of stores."""

from __future__ import annotations

from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, PoolName, Resource, TenantName, Uid, UserName

GPU = Resource("nvidia.com/gpu")


def run(name: str, begin: int = 1000, end: int | None = None) -> UsageRecord:
    return UsageRecord(
        Uid(f"u-{name}"), "team a", name, "train", TenantName("team/a"), UserName("system:x:y"),
        PoolName("h100"), {GPU: 8}, Millis(begin), end=None if end is None else Millis(end),
    )  # fmt: skip
