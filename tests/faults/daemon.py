"""The programs Fairgate depends on, one by one: to be killed, stopped and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import redis

from app.dev.cluster import Cluster
from app.dev.processes import Process, Program, is_alive
from app.dev.ready import until

READY_SECONDS = 60.0


class Daemon:
    """One program of the control plane, by the name of its process."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._processes = cluster.processes
        self._process: Process = [c for c in self._processes.recorded() if c.name == name][-1]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return is_alive(self._process)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """End it, and return once it is gone."""
        self.cont()
        self._processes.stop([self._process], sign)

    def stop(self) -> None:
        """Let it stand still (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Let it go on."""
        if self.alive:
            os.kill(self.pid, signal.SIGCONT)

    def start(self) -> None:
        """Start it as it was, if it is gone. Returns at once."""
        if not self.alive:
            known = self._process
            self._process = self._processes.start(
                Program(known.name, known.argv, known.environment)
            )


class RedisDaemon(Daemon):
    """Redis: what it holds is lost with it, unless `save` was called before."""

    def __init__(self, cluster: Cluster, name: str, url: str) -> None:
        super().__init__(cluster, name)
        self._dump = Path(cluster.folder) / "redis" / "dump.rdb"
        self.url = url

    def start(self, *, empty: bool = False) -> None:
        """Start it, with what was saved last or with nothing; return once it answers."""
        if empty and not self.alive:
            self._dump.unlink(missing_ok=True)
        super().start()
        until({"Redis": self.answers}, seconds=READY_SECONDS)

    def restart(self, *, empty: bool = True) -> None:
        """Kill it and start it, with what it held (and an answer given late) or with nothing."""
        if not empty:
            self.save()
        self.kill()
        self.start(empty=empty)

    def save(self) -> None:
        """Write what it holds to disk, to start with later."""
        with self.client() as server:
            server.save()

    def flush(self) -> None:
        """Empty it under everybody's hands."""
        with self.client() as server:
            server.flushall()

    def answers(self) -> bool:
        """Tell whether it answers."""
        try:
            with self.client() as server:
                return bool(server.ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        """Return a direct connection; close it."""
        return redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=1)
