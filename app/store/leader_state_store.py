"""Leader state for the other replicas, in one key of Redis.

Any client of Redis can write here, so the state is only used for answers to people.
"""

from __future__ import annotations

import msgspec

from app.core.explain.views import LeaderStateMessage, PublishedReservation
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid, UserName
from app.store import schema
from app.store.connection import Server
from app.store.lua_scripts import Scripts

MOST_BYTES = 4 * 1024 * 1024
"""Maximum size of a message in bytes. Capacity is reserved on some thousand nodes at most."""


class _Reserved(msgspec.Struct, frozen=True):
    pool: str
    uid: str
    tenant: str
    rooms: dict[str, dict[str, int]]


class _Kind(msgspec.Struct, frozen=True):
    queue: str
    amounts: dict[str, int]


class _StoredMessage(msgspec.Struct, frozen=True):
    at: int
    epoch: int
    drift: float
    reserved: list[_Reserved]
    refused: dict[str, int]
    banned: list[_Kind]
    closed: dict[str, int] = {}
    barred: list[tuple[str, str, int]] = []
    deferred: list[tuple[str, int]] = []
    postponed: list[str] = []


_decode = msgspec.json.Decoder(_StoredMessage).decode


class RedisLeaderState:
    """`ports.api.LeaderStateStore` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._server = server
        self._scripts = Scripts(server, cluster)
        self._key = f"{schema.key_prefix(cluster)}bulletin"

    async def store_message(self, leader_message: LeaderStateMessage) -> None:
        """Replace the last message. Raises EpochStale if a later leader has written."""
        await self._scripts.run_script(
            "leader_state_put",
            leader_message.epoch,
            msgspec.json.encode(_encode_message(leader_message)),
        )

    async def read_message(self) -> LeaderStateMessage | None:
        """Return the last message, or None if it is missing or invalid."""
        text = await self._server.call("GET", self._key)
        if text is None or len(text) > MOST_BYTES:
            return None
        try:
            return _decode_message(_decode(text))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None


def _encode_message(leader_message: LeaderStateMessage) -> _StoredMessage:
    return _StoredMessage(
        leader_message.at,
        leader_message.epoch,
        leader_message.drift,
        [
            _Reserved(each.pool, each.uid, each.tenant, _encode_amounts(each))
            for each in leader_message.reservations
        ],
        {str(uid): times for uid, times in leader_message.refusal_counts.items()},
        [
            _Kind(schema.join(tenant, user), {str(r): v for r, v in amounts})
            for tenant, user, amounts in sorted(
                leader_message.banned_keys, key=lambda kind: kind[:2]
            )
        ],
        {str(pool): until for pool, until in leader_message.growth_closed_until.items()},
        [
            (pool, schema.join(*who), until)
            for (pool, who), until in leader_message.growth_barred_until.items()
        ],
        [(schema.join(*gang), until) for gang, until in leader_message.deferred_gangs.items()],
        sorted(leader_message.postponed_pods),
    )


def _encode_amounts(reserved: PublishedReservation) -> dict[str, dict[str, int]]:
    return {
        str(node): {str(r): v for r, v in amounts.items()}
        for node, amounts in reserved.capacity_by_node.items()
    }


def _decode_message(written: _StoredMessage) -> LeaderStateMessage:
    return LeaderStateMessage(
        Millis(written.at),
        written.epoch,
        written.drift,
        tuple(
            PublishedReservation(
                PoolName(each.pool),
                Uid(each.uid),
                TenantName(each.tenant),
                {
                    NodeName(node): {Resource(r): v for r, v in amounts.items()}
                    for node, amounts in each.rooms.items()
                },
            )
            for each in written.reserved
        ),
        {Uid(uid): times for uid, times in written.refused.items()},
        frozenset(
            (TenantName(tenant), UserName(user), frozenset(amounts.items()))
            for each in written.banned
            for tenant, user in [schema.split(each.queue)]
            for amounts in [{Resource(r): v for r, v in each.amounts.items()}]
        ),
        {PoolName(pool): Millis(until) for pool, until in written.closed.items()},
        {
            (PoolName(pool), (TenantName(tenant), UserName(user))): Millis(until)
            for pool, queue, until in written.barred
            for tenant, user in [schema.split(queue)]
        },
        {
            (namespace, UserName(user), name): Millis(until)
            for gang, until in written.deferred
            for namespace, user, name in [schema.split(gang)]
        },
        frozenset(map(Uid, written.postponed)),
    )
