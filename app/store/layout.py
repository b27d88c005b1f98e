"""Names of keys, and what stands in them. The scripts in `lua/` rely on both.

    fairgate:{CLUSTER}:layout     string  VERSION
    fairgate:{CLUSTER}:state      hash    epoch: the floor; generation: the contents that are
                                          valid; building: those a rebuild is still filling
    fairgate:{CLUSTER}:notes      hash    uid or KIND/NAME -> what the audit chain last told of it
    fairgate:{CLUSTER}:reports    hash    id -> what another process reported for the audit chain
    fairgate:{CLUSTER}:bulletin   string  what only the leader knows, for those who answer people
    fairgate:{CLUSTER}:notes-whole  string  there while no note was lost
    fairgate:{CLUSTER}:GEN:...    the contents of one generation:
        sequence                  string  number of the last write
        waiting                   hash    TENANT:USER -> how many wait; also the index of queues
        queue:TENANT:USER         zset    score 0, member = rank NUL uid: its order is the queue's
        held                      hash    uid -> Held
        intents, charges          hash    uid -> Open, Taken; a uid is in one of them at most
        used                      hash    TENANT:USER:POOL:RESOURCE -> sum of both, never 0
    fairgate:{CLUSTER}:audit      stream  id NUMBER-0, field entry: a line of the audit chain
    fairgate:{CLUSTER}:audit-head hash    signed: the newest signed head; epoch: who sealed it
    fairgate:{CLUSTER}:audit-aside        a stream that could not be continued

Parts in capitals are percent-encoded. The braces keep all keys of a cluster in one slot.
"""

from __future__ import annotations

from functools import lru_cache
from typing import assert_never
from urllib.parse import quote, unquote

import msgspec

from app.core.effects import Charge, Dequeue, Enqueue, Intend, PodRef, Refund, StoreWrite
from app.core.model import Amounts, PoolName, Resource, TenantName, Uid, UserName

VERSION = "1"

MOST = 2**50
"""The largest amount that is counted as written, for one pod and resource (a pebibyte).

Redis counts in 64 bits, so a pod that asks for all of them must not be able to overflow a sum.
"""

NUL = "\0"


class Held(msgspec.Struct, frozen=True):
    """A pod in a queue."""

    queue: str
    member: str
    namespace: str
    name: str


class Taken(msgspec.Struct, frozen=True):
    """What a pod uses: amounts as text, because numbers in Lua are doubles; never 0."""

    at: str
    amounts: dict[str, str]


class Open(Taken, frozen=True):
    """What a pod may be using: a release that was begun."""

    namespace: str
    name: str
    epoch: int
    sequence: int


_to_json = msgspec.json.Encoder().encode
_to_held = msgspec.json.Decoder(Held).decode
_to_open = msgspec.json.Decoder(Open).decode


def domain(cluster: str) -> str:
    """Return what all keys of a cluster begin with."""
    return f"fairgate:{{{_part(cluster)}}}:"


def join(*names: str) -> str:
    """Return names as one text that `split` takes apart again, whatever they contain."""
    return ":".join(map(_part, names))


def split(text: str | bytes) -> list[str]:
    """Return the names that `join` put together."""
    written = text.decode() if isinstance(text, bytes) else text
    return [_name(part) for part in written.split(":")]


def arguments(write: StoreWrite) -> tuple[str | bytes, ...]:
    """Return a write as the script takes it: operation, uid, record."""
    match write:
        case Enqueue(ref, tenant, user, rank):
            member = f"{rank}{NUL}{ref.uid}"
            held = Held(join(tenant, user), member, ref.namespace, ref.name)
            return "enqueue", ref.uid, _to_json(held)
        case Dequeue(uid):
            return "dequeue", uid, b""
        case Intend(ref, tenant, user, pool, demand, epoch, sequence):
            at = join(tenant, user, pool)
            begun = Open(at, _as_text(demand), ref.namespace, ref.name, epoch, sequence)
            return "intend", ref.uid, _to_json(begun)
        case Charge(uid, tenant, user, pool, demand):
            return "charge", uid, _to_json(Taken(join(tenant, user, pool), _as_text(demand)))
        case Refund(uid):
            return "refund", uid, b""
        case _:
            assert_never(write)


def intent(uid: bytes, record: bytes) -> Intend:
    """Return the write that an entry of `intents` was made from."""
    begun = _to_open(record)
    tenant, user, pool = split(begun.at)
    return Intend(
        PodRef(Uid(uid.decode()), begun.namespace, begun.name),
        TenantName(tenant),
        UserName(user),
        PoolName(pool),
        {Resource(*split(name)): int(amount) for name, amount in begun.amounts.items()},
        begun.epoch,
        begun.sequence,
    )


def held(record: bytes) -> tuple[PodRef, TenantName, UserName]:
    """Return the pod of an entry of `held`, and its queue."""
    waits = _to_held(record)
    tenant, user = split(waits.queue)
    uid = Uid(waits.member.partition(NUL)[2])
    return PodRef(uid, waits.namespace, waits.name), TenantName(tenant), UserName(user)


def counted(amount: int) -> int:
    """Return how much of an amount is counted: see MOST."""
    return max(0, min(amount, MOST))


def _as_text(demand: Amounts) -> dict[str, str]:
    return {_part(name): str(counted(value)) for name, value in demand.items() if counted(value)}


@lru_cache(maxsize=10_000)
def _part(name: str) -> str:
    # Names come from users and may hold half a surrogate pair, which is no UTF-8.
    return quote(name, safe="", errors="surrogatepass")


@lru_cache(maxsize=10_000)
def _name(part: str) -> str:
    return unquote(part, errors="surrogatepass")
