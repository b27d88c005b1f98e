"""A release order for tests of patches."""

from __future__ import annotations

from app.core.effects import Intend, PodRef, Release
from app.core.model import Millis, PoolName, Resource, TenantName, Uid, UserName
from app.core.release_patch import (
    release_labels,
)

GPU = Resource("nvidia.com/gpu")

ALICE = UserName("alice@example.com")

ORDER = Release(
    intent=Intend(
        PodRef(Uid("u-1"), "team-a", "p"),
        TenantName("team-a"),
        ALICE,
        PoolName("h100"),
        {GPU: 1},
        epoch=7,
        sequence=42,
    ),
    expected_annotation="0",
    selector={"nvidia.com/gpu.product": "H100"},
    labels=release_labels(TenantName("team-a"), ALICE, "h100"),
    has_selector=False,
    has_labels=True,
    has_annotations=True,
    preemptible=True,
    waiting_since=Millis(0),
)
