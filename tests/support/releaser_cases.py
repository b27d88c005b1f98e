"""A release order for tests of the pod releaser."""

from __future__ import annotations

from app.core.effects import Intend, PodRef, Release
from app.core.model import Millis, PoolName, TenantName, Uid, UserName
from app.core.release_patch import release_labels
from app.core.well_known import RELEASE_HELD


def order_for(name: str, uid: str) -> Release:
    tenant, user, pool = TenantName("team-a"), UserName("alice"), PoolName("h100")
    return Release(
        intent=Intend(PodRef(Uid(uid), "default", name), tenant, user, pool, {}, 7, 3),
        expected_annotation=RELEASE_HELD,
        selector={"example.com/nowhere": "yes"},
        labels=release_labels(tenant, user, pool),
        has_selector=False,
        has_labels=True,
        has_annotations=True,
        preemptible=True,
        waiting_since=Millis(0),
    )
