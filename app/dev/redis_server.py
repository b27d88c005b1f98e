"""A Redis for the local cluster: one that runs already, or a server of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import redis

from app.core.errors import StoreUnavailable
from app.dev.processes import Processes, Program
from app.dev.ready import free_ports, until
from app.dev.tools import redis_server

URL = "FAIRGATE_REDIS_URL"
NAME = "redis"
READY_SECONDS = 20.0


def given_redis() -> str | None:
    """Return the URL of the Redis we were told to use, None if we were told of none.

    Raises StoreUnavailable if it does not answer.
    """
    url = os.environ.get(URL) or None
    if url is not None and "sentinel" not in url:
        try:
            with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as server:
                server.ping()
        except (redis.RedisError, ValueError) as error:
            raise StoreUnavailable(
                f"The Redis that {URL} names does not answer ({error}); start it, or unset {URL} "
                "and a server is started for you."
            ) from error
    return url


def start_redis(folder: Path, processes: Processes, durable: bool) -> str:
    """Start a server on a free port of the loopback; return its URL once it answers."""
    (port,) = free_ports(1)
    data = folder / "redis"
    data.mkdir(mode=0o700, exist_ok=True)
    flags = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(data),
        "appendonly": "yes" if durable else "no",
        "maxmemory-policy": "noeviction",
    }
    argv = [str(redis_server())]
    for name, value in flags.items():
        argv += [f"--{name}", value]
    argv += ["--save", ""]
    server = processes.start(Program(NAME, tuple(argv), {"PATH": os.defpath}))
    until(
        {"Redis": lambda: _answers(port)},
        seconds=READY_SECONDS,
        check=lambda: processes.check([server]),
    )
    return f"redis://127.0.0.1:{port}/0"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
