"""The programs Fairgate depends on, which tests kill, stop and start."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import redis

from app.devcluster.cluster import LocalCluster
from app.devcluster.processes import ChildProcess, Program, is_alive
from app.devcluster.readiness import wait_until

READY_SECONDS = 60.0


class Daemon:
    """One program of the control plane, by the name of its process."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self._processes = cluster.processes
        self._process: ChildProcess = [c for c in self._processes.recorded() if c.name == name][-1]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return is_alive(self._process)

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """Kill the program; return after it has ended."""
        self.cont()
        self._processes.stop([self._process], sign)

    def stop(self) -> None:
        """Suspend the program (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def cont(self) -> None:
        """Resume the program."""
        if self.alive:
            os.kill(self.pid, signal.SIGCONT)

    def start(self) -> None:
        """Start the program again with its arguments, if it has ended. Returns at once."""
        if not self.alive:
            known = self._process
            self._process = self._processes.start(
                Program(known.name, known.argv, known.environment)
            )


class RedisDaemon(Daemon):
    """Redis. A restart loses its data, unless `save` was called before."""

    def __init__(self, cluster: LocalCluster, name: str, url: str) -> None:
        super().__init__(cluster, name)
        self._dump = Path(cluster.folder) / "redis" / "dump.rdb"
        self.url = url

    def start(self, *, empty: bool = False) -> None:
        """Start with the saved data or empty; return when Redis answers."""
        if empty and not self.alive:
            self._dump.unlink(missing_ok=True)
        super().start()
        wait_until({"Redis": self.answers}, seconds=READY_SECONDS)

    def restart(self, *, empty: bool = True) -> None:
        """Kill and start Redis, with its data (and an answer given late) or empty."""
        if not empty:
            self.save()
        self.kill()
        self.start(empty=empty)

    def save(self) -> None:
        """Write the data to disk for a later start."""
        with self.client() as server:
            server.save()

    def flush(self) -> None:
        """Delete all data while clients are connected."""
        with self.client() as server:
            server.flushall()

    def answers(self) -> bool:
        """Return whether Redis answers."""
        try:
            with self.client() as server:
                return bool(server.ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        """Return a direct connection. The caller closes it."""
        return redis.Redis.from_url(self.url, socket_timeout=5, socket_connect_timeout=1)
