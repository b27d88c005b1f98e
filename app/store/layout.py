"""Names of keys, and what stands in them. The scripts in `lua/` rely on both.

    fairgate:{CLUSTER}:layout     string  VERSION
    fairgate:{CLUSTER}:state      hash    epoch: the floor; generation: the contents that are
                                          valid; building: those a rebuild is still filling
    fairgate:{CLUSTER}:notes      hash    uid or KIND/NAME -> what the audit chain last told of it
    fairgate:{CLUSTER}:reports    hash    id -> what another process reported for the audit chain
    fairgate:{CLUSTER}:bulletin   string  what only the leader knows, for those who answer people
    fairgate:{CLUSTER}:notes-whole  string  there while no note was lost
    fairgate:{CLUSTER}:running    hash    uid -> Going: what a pod uses, and since when
    fairgate:{CLUSTER}:run        hash    uid/BEGIN -> Gone: what a pod used, and until when
    fairgate:{CLUSTER}:runs       zset    score end, member uid/BEGIN: every field of `run`
    fairgate:{CLUSTER}:runs-since string  from when on (ms) no run is missing
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

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import assert_never
from urllib.parse import quote, unquote

import msgspec

from app.core.effects import Charge, Dequeue, Enqueue, Intend, PodRef, Refund, StoreWrite
from app.core.fair.runs import Begun, Ran, Run
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, Uid, UserName

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
    begin: int = 0


class Going(msgspec.Struct, frozen=True, array_like=True):
    """A run that goes on. Times in ms; `bound` 0: on no node yet. Written as an array: many."""

    begin: int
    bound: int
    at: str
    amounts: dict[str, str]


class Gone(Going, frozen=True, array_like=True):
    """A run that has ended; the script makes one of a Going by appending these two."""

    end: int
    assumed: int


_to_json = msgspec.json.Encoder().encode
_to_held = msgspec.json.Decoder(Held).decode
_to_going = msgspec.json.Decoder(Going).decode
_to_gone = msgspec.json.Decoder(Gone).decode
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
        case Enqueue(ref):
            return "enqueue", ref.uid, _to_json(_held(write))
        case Dequeue(uid):
            return "dequeue", uid, b""
        case Intend(ref, tenant, user, pool, demand, epoch, sequence, begin):
            at = join(tenant, user, pool)
            record = Open(at, _as_text(demand), ref.namespace, ref.name, epoch, sequence, begin)
            return "intend", ref.uid, _to_json(record)
        case Charge(uid, tenant, user, pool, demand):
            return "charge", uid, _to_json(Taken(join(tenant, user, pool), _as_text(demand)))
        case Refund(uid):
            return "refund", uid, b""
        case Begun(run):
            return "begun", run.uid, _to_json(Going(*_going(run)))
        case Ran(run):
            assert run.end is not None
            return "ran", run.uid, _to_json(Gone(*_going(run), run.end, int(run.assumed)))
        case _:
            assert_never(write)


def filling(writes: Iterable[Enqueue], most: int) -> Iterator[list[str | bytes | int]]:
    """Return pods that wait, each named once, as the script `fill` takes them: so many at once."""
    queues: dict[str, list[tuple[Uid, Held]]] = {}
    for write in writes:
        held = _held(write)
        queues.setdefault(held.queue, []).append((write.ref.uid, held))
    flat: list[str | bytes | int] = []
    count = 0
    for queue, pods in queues.items():
        for first in range(0, len(pods), most):
            part = pods[first : first + most]
            if count + len(part) > most:
                yield flat
                flat, count = [], 0
            flat += (queue, len(part))
            for uid, held in part:
                flat += (uid, _to_json(held), held.member)
            count += len(part)
    if flat:
        yield flat


def _held(write: Enqueue) -> Held:
    ref = write.ref
    member = f"{write.rank}{NUL}{ref.uid}"
    return Held(join(write.tenant, write.user), member, ref.namespace, ref.name)


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
        Millis(begun.begin),
    )


def running(uid: bytes, record: bytes) -> Run:
    """Return the run that an entry of `running` was made from."""
    return _run(uid.decode(), _to_going(record))


def ran(key: bytes, record: bytes) -> Run:
    """Return the run that an entry of `run` was made from."""
    gone = _to_gone(record)
    uid = key.decode().rpartition("/")[0]
    return _run(uid, gone, Millis(gone.end), assumed=bool(gone.assumed))


def _run(uid: str, kept: Going, end: Millis | None = None, *, assumed: bool = False) -> Run:
    namespace, pod, workload, tenant, user, pool, node = split(kept.at)
    return Run(
        Uid(uid),
        namespace,
        pod,
        workload,
        TenantName(tenant),
        UserName(user),
        PoolName(pool),
        {Resource(_name(name)): int(amount) for name, amount in kept.amounts.items()},
        Millis(kept.begin),
        NodeName(node),
        Millis(kept.bound) if kept.bound else None,
        end,
        assumed,
    )


def _going(run: Run) -> tuple[int, int, str, dict[str, str]]:
    whose = run.namespace, run.pod, run.workload, run.tenant, run.user, run.pool, run.node
    return run.begin, run.bound or 0, join(*whose), _as_text(run.amounts)


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
