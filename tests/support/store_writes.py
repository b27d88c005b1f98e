"""Builders for the writes of a leader to the store."""

from __future__ import annotations

from app.core.effects import Charge, Enqueue, Intend, PodRef
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, PoolName, Resource, TenantName, Uid, UserName

GPU = Resource("nvidia.com/gpu")
CPU = Resource("cpu")
TEAM, ALICE, BOB = TenantName("team-a"), UserName("alice"), UserName("bob: the ü%{}")
POOL = PoolName("h100")


def ref(uid: str) -> PodRef:
    return PodRef(Uid(uid), "space", f"pod-{uid}")


def enqueue(uid: str, rank: str, user: UserName = ALICE) -> Enqueue:
    return Enqueue(ref(uid), TEAM, user, QueueKey(int(rank), Millis(5), Uid(uid)).rank)


def intend(uid: str, gpus: int, sequence: int = 1) -> Intend:
    return Intend(ref(uid), TEAM, ALICE, POOL, {GPU: gpus, CPU: 500}, 7, sequence)


def charge(uid: str, gpus: int, user: UserName = ALICE) -> Charge:
    return Charge(Uid(uid), TEAM, user, POOL, {GPU: gpus})
