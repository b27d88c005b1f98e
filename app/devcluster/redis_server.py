"""Redis for the local cluster: a running server, or one that is started for it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import redis

from app.core.errors import StoreUnavailable
from app.devcluster.binaries import redis_server
from app.devcluster.processes import Processes, Program
from app.devcluster.readiness import free_ports, wait_until
from app.tls.certificate_authority import write_private

URL = "FAIRGATE_REDIS_URL"
NAME = "redis"
READY_SECONDS = 20.0


def given_redis() -> str | None:
    """Return the URL in `FAIRGATE_REDIS_URL`; None if it is not set.

    Raises StoreUnavailable if the server does not answer.
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
    """Start a server on a free port of the loopback; return its URL when it answers.

    The URL contains a random password. The server reads it from a private file, because every user
    of the machine can read command lines.
    """
    (port,) = free_ports(1)
    data = folder / "redis"
    data.mkdir(mode=0o700, exist_ok=True)
    password = secrets.token_urlsafe(24)
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": f'"{data}"',
        "appendonly": "yes" if durable else "no",
        "maxmemory-policy": "noeviction",
        "save": '""',
        "requirepass": password,
    }
    written = data / "redis.conf"
    write_private(written, "".join(f"{k} {v}\n" for k, v in settings.items()).encode())
    argv = (str(redis_server()), str(written))
    server = processes.start(Program(NAME, argv, {"PATH": os.defpath}))
    url = f"redis://:{password}@127.0.0.1:{port}/0"
    wait_until(
        {"Redis": lambda: _answers(url)},
        seconds=READY_SECONDS,
        check=lambda: processes.check([server]),
    )
    return url


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as server:
            return bool(server.ping())
    except redis.RedisError:
        return False
