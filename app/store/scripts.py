"""The Lua scripts: loaded from `lua/`, run by their hash, their answers judged.

A script is atomic: it checks everything first and writes last. Each is the prelude plus its own
file, and takes the same first keys and arguments.
"""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from app.core.errors import EpochStale, StoreEmptied, StoreForeign
from app.store import layout
from app.store.connection import Server

NAMES = (
    "apply", "begin", "drop", "entries", "fill", "finish", "floor", "forget", "noted", "place",
    "post", "queue", "ran", "remember", "report", "reports", "running", "seal", "since", "table",
    "trail", "trim",
)  # fmt: skip


class Scripts:
    """The scripts, for one cluster's keys on one server."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._server = server
        self._cluster = cluster
        domain = layout.domain(cluster)
        self._frame = (2, f"{domain}layout", f"{domain}state", layout.VERSION, domain)

    async def run(self, name: str, *arguments: str | bytes | int) -> list[Any]:
        """Run one script and return what it answered after OK.

        Raises EpochStale, StoreEmptied and StoreForeign as the script judged, and as
        `Server.call` does.
        """
        source, digest = _SOURCES[name]
        try:
            answer = await self._server.call("EVALSHA", digest, *self._frame, *arguments)
        except NoScriptError:  # a new server, or somebody flushed its scripts
            answer = await self._server.call("EVAL", source, *self._frame, *arguments)
        return self._judged(answer)

    def _judged(self, answer: list[Any]) -> list[Any]:
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
                    f"Redis does not hold what was written for cluster {self._cluster} "
                    f"({rest[0].decode()}): the leader must rebuild it."
                )
            case _:
                domain = layout.domain(self._cluster)
                raise StoreForeign(
                    f"Redis holds layout {rest[0].decode(errors='replace')} for cluster "
                    f"{self._cluster}, this version knows layout {layout.VERSION}: finish the "
                    f"upgrade, or delete the keys {domain}* except {domain}audit* and let the "
                    "leader rebuild them."
                )


def _load(name: str) -> tuple[str, str]:
    folder = files("app.store") / "lua"
    parts = (folder / "prelude.lua", folder / f"{name}.lua")
    source = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


_SOURCES = {name: _load(name) for name in NAMES}
