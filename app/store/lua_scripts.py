"""Loads the Lua scripts from `lua/`, runs them by hash and translates their results.

A script is atomic: it checks everything first and writes last. Each script is the prelude plus its
own file. All scripts share the first keys and arguments.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from app.core.errors import EpochStale, StoreEmptied, StoreForeign
from app.store import schema
from app.store.connection import Server

NAMES = (
    "apply_writes",
    "audit_append",
    "audit_read",
    "audit_tail",
    "begin_generation",
    "epoch_floor",
    "fill_queues",
    "finish_generation",
    "generation_hash",
    "leader_state_put",
    "marker_drop",
    "marker_list",
    "marker_restore",
    "queue_page",
    "report_drop",
    "report_list",
    "report_push",
    "usage_complete_since",
    "usage_ended",
    "usage_open",
    "usage_trim",
)


class Scripts:
    """The scripts for the keys of one cluster on one server."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._server = server
        self._cluster = cluster
        domain = schema.key_prefix(cluster)
        self._common_arguments = (2, f"{domain}layout", f"{domain}state", schema.VERSION, domain)

    async def run_script(self, name: str, *arguments: str | bytes | int) -> list[Any]:
        """Run one script and return its result without the leading OK.

        Raises EpochStale, StoreEmptied and StoreForeign according to the script's result, and the
        errors of `Server.call`.
        """
        source, digest = _SOURCES[name]
        try:
            answer = await self._server.call("EVALSHA", digest, *self._common_arguments, *arguments)
        except NoScriptError:  # a new server, or SCRIPT FLUSH
            answer = await self._server.call("EVAL", source, *self._common_arguments, *arguments)
        return self._check_answer(answer)

    def _check_answer(self, answer: list[Any]) -> list[Any]:
        verdict, *rest = answer
        match verdict:
            case b"OK":
                return rest
            case b"STALE":
                raise EpochStale(
                    f"a leader with epoch {rest[0].decode()} has written to Redis for cluster "
                    f"{self._cluster}: an older one may not write any more."
                )
            case b"EMPTIED":
                raise StoreEmptied(
                    f"Redis does not contain the data of cluster {self._cluster} "
                    f"({rest[0].decode()}): the leader must rebuild it."
                )
            case _:
                domain = schema.key_prefix(self._cluster)
                raise StoreForeign(
                    f"Redis holds layout {rest[0].decode(errors='replace')} for cluster "
                    f"{self._cluster}, this version knows layout {schema.VERSION}: finish the "
                    f"upgrade, or delete the keys {domain}* except {domain}audit* and let the "
                    "leader rebuild them."
                )


def _load(name: str) -> tuple[str, str]:
    folder = files("app.store") / "lua"
    parts = (folder / "prelude.lua", folder / f"{name}.lua")
    source = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


_SOURCES = {name: _load(name) for name in NAMES}
