"""Redis key names and record formats. The scripts in `lua/` depend on both.

    fairgate:{CLUSTER}:layout     string  VERSION
    fairgate:{CLUSTER}:state      hash    epoch: the floor; generation: the valid contents;
                                          building: contents that a rebuild is still writing
    fairgate:{CLUSTER}:notes      hash    uid or KIND/NAME -> audit marker: last recorded state
    fairgate:{CLUSTER}:reports    hash    id -> audit report of another process
    fairgate:{CLUSTER}:bulletin   string  leader state, for the replicas that answer people
    fairgate:{CLUSTER}:enforcement string  last result of the enforcement probes, for the same
    fairgate:{CLUSTER}:enforcement-renewed string  time (ms) at which a webhook replica worked
    fairgate:{CLUSTER}:notes-whole  string  exists while no audit marker is lost
    fairgate:{CLUSTER}:running    hash    uid -> Going: open usage record
    fairgate:{CLUSTER}:run        hash    uid/BEGIN -> Gone: ended usage record
    fairgate:{CLUSTER}:runs       zset    score end, member uid/BEGIN: every field of `run`
    fairgate:{CLUSTER}:runs-since string  time (ms) from which usage records are complete
    fairgate:{CLUSTER}:GEN:...    the contents of one generation:
        sequence                  string  number of the last write
        waiting                   hash    TENANT:USER -> number of waiting pods; index of queues
        queue:TENANT:USER         zset    score = ListOrder, member = rank NUL uid, in list order
        held                      hash    uid -> Held
        intents, charges          hash    uid -> Open, Taken; a uid is in at most one of the two
        used                      hash    TENANT:USER:POOL:RESOURCE -> sum of both, never 0
    fairgate:{CLUSTER}:audit      stream  id NUMBER-0, field entry: a line of the audit chain
    fairgate:{CLUSTER}:audit-head hash    signed: the newest signed head; epoch: its leader
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
from app.core.fairshare.usage_record import UsageEnded, UsageRecord, UsageStarted
from app.core.model import Amounts, Millis, NodeName, PoolName, Resource, TenantName, Uid, UserName

VERSION = "1"

MOST_AMOUNT = 2**50
"""Limit of the counted amount per pod and resource (a pebibyte). Sums of millions of such pods are
exact: see `apply_writes`."""

NUL = "\0"


class HeldEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod that waits in a queue. `order` is a ListOrder."""

    queue: str
    member: str
    namespace: str
    name: str
    order: int = 0
    gang: str = ""
    pods: int = 1


class UsedEntry(msgspec.Struct, frozen=True):
    """Usage of a pod. Amounts are text, because numbers in Lua are doubles. They are never 0."""

    at: str
    amounts: dict[str, str]


class PossibleUsage(UsedEntry, frozen=True):
    """Possible usage of a pod: a release that was started."""

    namespace: str
    name: str
    epoch: int
    sequence: int
    begin: int = 0


class OpenUsageRow(msgspec.Struct, frozen=True, array_like=True):
    """An open usage record. Times in ms; `bound` 0 means not bound yet. An array to save space."""

    begin: int
    bound: int
    at: str
    amounts: dict[str, str]


class Gone(OpenUsageRow, frozen=True, array_like=True):
    """An ended usage record. The script appends these two fields to a Going."""

    end: int
    assumed: int


_to_json = msgspec.json.Encoder().encode
_to_going = msgspec.json.Decoder(OpenUsageRow).decode
_to_gone = msgspec.json.Decoder(Gone).decode
_to_open = msgspec.json.Decoder(PossibleUsage).decode


def key_prefix(cluster: str) -> str:
    """Return the prefix of all keys of a cluster."""
    return f"fairgate:{{{_escape(cluster)}}}:"


def join(*names: str) -> str:
    """Return names as one text that `split` separates again. Names may contain any character."""
    return ":".join(map(_escape, names))


def split(text: str | bytes) -> list[str]:
    """Return the names that `join` combined."""
    written = text.decode() if isinstance(text, bytes) else text
    return [_unescape(part) for part in written.split(":")]


def write_arguments(write: StoreWrite) -> tuple[str | bytes, ...]:
    """Return a write as arguments of the script `apply_writes`: operation, uid, record."""
    match write:
        case Enqueue(ref):
            return "enqueue", ref.uid, _to_json(_queue_entry(write))
        case Dequeue(uid):
            return "dequeue", uid, b""
        case Intend(ref, tenant, user, pool, demand, epoch, sequence, begin):
            at = join(tenant, user, pool)
            record = PossibleUsage(
                at, _as_text(demand), ref.namespace, ref.name, epoch, sequence, begin
            )
            return "intend", ref.uid, _to_json(record)
        case Charge(uid, tenant, user, pool, demand):
            return "charge", uid, _to_json(UsedEntry(join(tenant, user, pool), _as_text(demand)))
        case Refund(uid):
            return "refund", uid, b""
        case UsageStarted(run):
            return "begun", run.uid, _to_json(OpenUsageRow(*_record_fields(run)))
        case UsageEnded(run):
            assert run.end is not None
            return "ran", run.uid, _to_json(Gone(*_record_fields(run), run.end, int(run.assumed)))
        case _:
            assert_never(write)


def queue_arguments(writes: Iterable[Enqueue], most: int) -> Iterator[list[str | bytes | int]]:
    """Yield waiting pods as arguments of the script `fill_queues`, at most `most` per call.

    Each pod must occur once.
    """
    queues: dict[str, list[tuple[Uid, HeldEntry]]] = {}
    for write in writes:
        held = _queue_entry(write)
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
                flat += (uid, _to_json(held), held.order, held.member)
            count += len(part)
    if flat:
        yield flat


def _queue_entry(write: Enqueue) -> HeldEntry:
    ref = write.ref
    at = queue_member(write.rank, ref.uid)
    queue = join(write.tenant, write.user)
    order = int(write.order)
    return HeldEntry(queue, at, ref.namespace, ref.name, order, write.gang, write.pods)


def decode_intent(uid: bytes, record: bytes) -> Intend:
    """Return the write of an entry in `intents`."""
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


def decode_open_record(uid: bytes, record: bytes) -> UsageRecord:
    """Return the usage record of an entry in `decode_open_record`."""
    return _usage_record(uid.decode(), _to_going(record))


def decode_ended_record(key: bytes, record: bytes) -> UsageRecord:
    """Return the usage record of an entry in `run`."""
    gone = _to_gone(record)
    uid = key.decode().rpartition("/")[0]
    return _usage_record(uid, gone, Millis(gone.end), assumed=bool(gone.assumed))


def _usage_record(
    uid: str, kept: OpenUsageRow, end: Millis | None = None, *, assumed: bool = False
) -> UsageRecord:
    namespace, pod, workload, tenant, user, pool, node = split(kept.at)
    return UsageRecord(
        Uid(uid),
        namespace,
        pod,
        workload,
        TenantName(tenant),
        UserName(user),
        PoolName(pool),
        {Resource(_unescape(name)): int(amount) for name, amount in kept.amounts.items()},
        Millis(kept.begin),
        NodeName(node),
        Millis(kept.bound) if kept.bound else None,
        end,
        assumed,
    )


def _record_fields(run: UsageRecord) -> tuple[int, int, str, dict[str, str]]:
    whose = run.namespace, run.pod, run.workload, run.tenant, run.user, run.pool, run.node
    return run.begin, run.bound or 0, join(*whose), _as_text(run.amounts)


decode_held_entry = msgspec.json.Decoder(HeldEntry).decode
"""Return the entry of a record in `held`."""


def pod_ref(held: HeldEntry, uid: str) -> PodRef:
    """Return the pod of an entry in `held`."""
    return PodRef(Uid(uid), held.namespace, held.name)


def queue_member(rank: str, uid: str) -> str:
    """Return the member of a pod in the sorted set of its queue."""
    return f"{rank}{NUL}{uid}"


def clamp_amount(amount: int) -> int:
    """Return the amount within 0 and MOST."""
    return max(0, min(amount, MOST_AMOUNT))


def _as_text(demand: Amounts) -> dict[str, str]:
    return {
        _escape(name): str(clamp_amount(value))
        for name, value in demand.items()
        if clamp_amount(value)
    }


@lru_cache(maxsize=10_000)
def _escape(name: str) -> str:
    # Users choose names, which may contain lone surrogates. UTF-8 cannot encode these.
    return quote(name, safe="", errors="surrogatepass")


@lru_cache(maxsize=10_000)
def _unescape(part: str) -> str:
    return unquote(part, errors="surrogatepass")
