"""Examples of answers for the OpenAPI document, taken from a real cluster."""

from __future__ import annotations

from typing import Any

_HELD: dict[str, Any] = {
    "namespace": "team-b",
    "name": "sweep",
    "uid": "dc6e248a-8067-44a5-a67a-835389be851c",
    "gang": None,
    "pods": 1,
    "user": "alice@example.com",
    "priority": 0,
    "since": "2026-11-22T01:08:51Z",
    "request": {"cpu": "1", "nvidia.com/gpu": "8"},
    "pools": ["default"],
    "position": 2,
    "length": 2,
    "rule": "guarantee of others",
    "reason": (
        "queued: 2 of 2 in team-b/alice@example.com; waits for 8 nvidia.com/gpu of pool default; "
        "tenant team-a comes first, within its guarantee"
    ),
    "estimate": {"p50": 640, "p90": 2100, "at": "2026-11-22T01:09:02Z"},
    "estimateWithheld": None,
}

_WHY: dict[str, Any] = {
    **_HELD,
    "tenant": "team-b",
    "state": "held",
    "numbers": {
        "first": "team-a",
        "its score": "0.0000 of its guarantee",
        "own score": "0.0078",
        "nvidia.com/gpu asked": "8",
        "nvidia.com/gpu free in default": "0",
    },
    "ahead": [
        {
            "tenant": "team-a",
            "score": "0.0000 of its guarantee",
            "own": "team-b",
            "ownScore": "0.0078",
            "reason": (
                "tenant team-a is within its guarantee (0 of it), which goes before "
                "use beyond the guarantee"
            ),
        }
    ],
    "remedies": [
        "the start, or the deletion, of waiting work of tenant team-a",
        "a guarantee of tenant team-b that covers it",
    ],
}

_TENANT: dict[str, Any] = {
    "name": "team-a",
    "exists": True,
    "parent": "research",
    "weight": "2",
    "namespaces": ["team-a"],
    "users": [{"name": "alice@example.com", "weight": "3"}],
    "quotas": [
        {
            "pool": "default",
            "guarantee": {"nvidia.com/gpu": "8"},
            "limit": {"nvidia.com/gpu": "16"},
        }
    ],
    "pools": [],
    "maxPending": 500,
    "paused": False,
    "share": "0.1250",
    "weightedShare": "0.0625",
    "used": {"default": {"nvidia.com/gpu": "8"}},
    "borrowed": {},
    "pending": 3,
    "fairShare": "0.2500",
}

_USER: dict[str, Any] = {
    "name": "alice@example.com",
    "weight": "3",
    "used": {"default": {"nvidia.com/gpu": "8"}},
    "pending": 3,
    "share": "0.1250",
    "fairShare": "0.2500",
}

_POOL: dict[str, Any] = {
    "name": "h100",
    "exists": True,
    "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
    "weights": {"nvidia.com/gpu": "4"},
    "overcommit": {},
    "placement": "pack",
    "tolerations": [
        {
            "key": "nvidia.com/gpu",
            "operator": "Exists",
            "value": None,
            "effect": "NoSchedule",
            "tolerationSeconds": None,
        }
    ],
    "topology": ["topology.kubernetes.io/zone", "example.com/rack"],
    "paused": False,
    "gpuMemory": "80Gi",
    "maxCapacity": {},
    "capacity": {"nvidia.com/gpu": "64"},
    "used": {"nvidia.com/gpu": "60"},
    "free": {"nvidia.com/gpu": "4"},
    "nodes": 8,
}

_NODE: dict[str, Any] = {
    "name": "gpu-node-0",
    "ready": True,
    "cordoned": False,
    "domain": "europe-a",
    "capacity": {"nvidia.com/gpu": "8"},
    "used": {"nvidia.com/gpu": "4"},
}

_QUOTA: dict[str, Any] = {
    "tenant": "team-a",
    "parent": "research",
    "weight": "2",
    "pool": "default",
    "guarantee": {"nvidia.com/gpu": "8"},
    "limit": {"nvidia.com/gpu": "16"},
    "used": {"nvidia.com/gpu": "8"},
    "borrowed": {},
    "pending": 3,
    "weightedShare": "0.0625",
}

Responses = dict[int | str, dict[str, Any]]


def _shown(example: dict[str, Any]) -> Responses:
    return {200: {"content": {"application/json": {"example": example}}}}


def _page(item: dict[str, Any], **more: Any) -> Responses:
    return _shown({"items": [item], "continue": None, **more})


TENANTS, TENANT = _page(_TENANT), _shown(_TENANT)
USERS = _page(_USER)
QUEUE = _page(_HELD, tenant="team-b", pending=5)
POOLS, POOL = _page(_POOL), _shown({**_POOL, "members": [_NODE]})
QUOTAS = _page(_QUOTA, at="2026-11-22T01:09:02Z")
WORKLOAD = _shown(_WHY)
EVENTS = _shown(
    {
        "items": [
            {
                "at": "2026-11-22T01:09:04Z",
                "reason": "Held",
                "message": (
                    "queued: 1 of 1 in team-b/alice@example.com; waits for 8 nvidia.com/gpu of "
                    "pool default; more: kubectl fairgate why train-0 -n team-b"
                ),
                "source": "fairgate",
                "warning": False,
                "count": 1,
            }
        ],
        "more": False,
    }
)
TRIAL = _shown(
    {
        "namespace": "team-b",
        "tenant": "team-b",
        "user": "alice@example.com",
        "state": "waits",
        "pods": 2,
        "startsNow": 1,
        "gang": None,
        "request": {"cpu": "2", "nvidia.com/gpu": "16"},
        "pools": ["default"],
        "position": 1,
        "length": 1,
        "rule": "capacity",
        "reason": (
            "queued: 1 of 1 in team-b/alice@example.com; waits for 8 nvidia.com/gpu of pool default"
        ),
        "numbers": {"nvidia.com/gpu asked": "8", "nvidia.com/gpu free in default": "0"},
        "ahead": [],
        "remedies": [
            "the end of pods that use 8 nvidia.com/gpu in pool default",
            "more nodes in pool default",
        ],
        "simulatedSeconds": 1260.0,
        "assumed": (
            "Each pod runs as long as one of the last 412 that ended did, of the same user and "
            "size where enough are known, and no longer than it declares. New pods are left out."
        ),
        "estimate": {"p50": 1260, "p90": 2700, "at": "2026-11-22T01:09:02Z"},
        "estimateWithheld": None,
    }
)
