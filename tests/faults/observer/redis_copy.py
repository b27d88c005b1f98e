"""Reads Fairgate's state from Redis and compares it with a recount (I8).

Implements only the documented layout, and never writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import redis

from tests.faults.observer.objects import Layout, Pod

LAYOUT = "1"
MOST = 2**50
"""Larger amounts count as this value."""

Queue = tuple[str, str]
Cell = tuple[str, str, str, str]


@dataclass(slots=True)
class Copy:
    """State in Redis: queues by (tenant, user), sums by cell, open intents by uid."""

    queues: dict[Queue, list[str]] = field(default_factory=dict)
    waiting: dict[Queue, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    used: Counter[Cell] = field(default_factory=Counter)
    intents: set[str] = field(default_factory=set)
    charges: set[str] = field(default_factory=set)


def recount(layout: Layout, pods: Iterable[Pod]) -> Copy:
    """Return the state that Redis should have, counted from the pods alone."""
    copy = Copy()
    queues: dict[Queue, list[Pod]] = {}
    for pod in pods:
        account = (layout.tenant_of(pod.namespace), pod.user)
        if pod.waits:
            queues.setdefault(account, []).append(pod)
            copy.held.add(pod.uid)
        elif pod.uses and (pool := layout.pool_of(pod)) is not None:
            copy.charges.add(pod.uid)
            for resource, value in pod.demand.items():
                copy.used[(*account, pool, resource)] += min(value, MOST)
    for account, waiting in queues.items():
        waiting.sort(key=lambda pod: (-pod.priority, pod.created, pod.uid))
        copy.queues[account] = [pod.uid for pod in waiting]
        copy.waiting[account] = len(waiting)
    return copy


def read(url: str, cluster: str) -> Copy | None:
    """Return the state in Redis; None if incomplete. Raises RedisError, ValueError."""
    with redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=5.0) as server:
        return _read(server, f"fairgate:{{{quote(cluster, safe='')}}}:")


def _read(server: Any, prefix: str) -> Copy | None:
    found = server.get(prefix + "layout")
    if found is not None and found.decode() != LAYOUT:
        raise ValueError(f"Redis holds layout {found.decode()!r}; the observer knows {LAYOUT!r}")
    generation = server.hget(prefix + "state", "generation")
    if generation is None:
        return None
    here = f"{prefix}{generation.decode()}:"
    copy = Copy()
    for name, count in server.hgetall(here + "waiting").items():
        copy.waiting[_queue(name)] = int(count)
    for key in server.scan_iter(match=_literal(here) + "queue:*", count=1000):
        # The score separates queued, unqueued and other pods of a gang. Order holds within each.
        members = sorted(server.zrange(key, 0, -1))
        queue = _queue(key.removeprefix((here + "queue:").encode()))
        copy.queues[queue] = [each.partition(b"\0")[2].decode() for each in members]
    copy.held = {uid.decode() for uid in server.hkeys(here + "held")}
    for cell, value in server.hgetall(here + "used").items():
        tenant, user, pool, resource = _names(cell)
        copy.used[tenant, user, pool, resource] = int(value)
    copy.intents = {uid.decode() for uid in server.hkeys(here + "intents")}
    charges = server.hgetall(here + "charges")
    # A released pod without requests has no charge.
    copy.charges = {uid.decode() for uid, text in charges.items() if json.loads(text)["amounts"]}
    return copy


def compare(wanted: Copy, found: Copy | None) -> list[str]:
    """Return the differences between Redis and a recount, one sentence each."""
    if found is None:
        return ["there is no complete state"] if wanted.held or wanted.charges else []
    different = [f"intent of pod {uid} is open" for uid in sorted(found.intents)]
    for account in sorted({*wanted.queues, *found.queues}):
        mine, theirs = wanted.queues.get(account, []), found.queues.get(account, [])
        if mine != theirs:
            different.append(f"queue {'/'.join(account)}: {_difference(mine, theirs)}")
    for account in sorted({*wanted.waiting, *found.waiting}):
        should, says = wanted.waiting.get(account, 0), found.waiting.get(account, 0)
        if should != says:
            different.append(f"waiting of {'/'.join(account)}: {says}, should be {should}")
    if wanted.held != found.held:
        different.append(f"held: {_difference(sorted(wanted.held), sorted(found.held))}")
    for cell in sorted({*wanted.used, *found.used}):
        if wanted.used[cell] != found.used[cell]:
            what = f"used of {':'.join(cell)}"
            different.append(f"{what}: {found.used[cell]}, should be {wanted.used[cell]}")
    if wanted.charges != found.charges:
        different.append(f"charges: {_difference(sorted(wanted.charges), sorted(found.charges))}")
    return different


def _difference(mine: list[str], theirs: list[str]) -> str:
    missing = [uid for uid in mine if uid not in set(theirs)]
    surplus = [uid for uid in theirs if uid not in set(mine)]
    if not missing and not surplus:
        return "another order"
    return f"missing {missing[:5]} ({len(missing)}), too much {surplus[:5]} ({len(surplus)})"


def _names(text: bytes) -> list[str]:
    return [unquote(part, errors="surrogatepass") for part in text.decode().split(":")]


def _queue(text: bytes) -> Queue:
    tenant, user = _names(text)
    return tenant, user


def _literal(text: str) -> str:
    return "".join("\\" + c if c in "*?[]\\^-" else c for c in text)
