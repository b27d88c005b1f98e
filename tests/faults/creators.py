"""Creates and deletes pods continuously, and records each answer without judging it.

Runs in its own thread with real credentials, directly against the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from app.core.errors import ClusterError
from app.kube.client import Client
from tests.support.cluster_driver import GATE, Object, gates, pod

END_SECONDS = 60.0

_CONNECTING = threading.Lock()
"""The Kubernetes library shares a certificate's file name between threads before writing it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A failed create, or a failed read of the created pod. `at` is monotonic time."""

    name: str
    at: float
    said: str


@dataclass(frozen=True, slots=True)
class Created:
    """A successful create, in monotonic time."""

    name: str
    began: float
    ended: float


@dataclass
class Tally:
    """Outcome counts of all pods so far. `seconds` are the durations of successful calls."""

    created: list[Created] = field(default_factory=list)
    ungated: list[str] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def begun_after(self, moment: float) -> list[Created]:
        """Return the successful creates that began after this time."""
        return [each for each in self.created if each.began > moment]

    def p99(self) -> float:
        """Return the 99th percentile of `seconds`, by nearest rank."""
        ordered = sorted(self.seconds)
        return ordered[-(-99 * len(ordered) // 100) - 1]


class Creators:
    """Workers that each create a pod, then pause for `pace` seconds; use with `with`."""

    def __init__(
        self,
        kubeconfig: Path,
        namespace: str,
        *,
        gpus: int = 1,
        workers: int = 4,
        pace: float = 0.2,
        keep: bool = False,
    ) -> None:
        """`keep` leaves the created pods in place. Their names begin with `gpu` or `cpu`."""
        self.tally = Tally()
        self._kubeconfig = kubeconfig
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._gpus = gpus
        self._workers = workers
        self._pace = pace
        self._keep = keep
        self._number = 0
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="creators", daemon=True)

    def __enter__(self) -> Creators:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(END_SECONDS)
        assert not self._thread.is_alive(), "a create never ended"
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:  # raised again in `__exit__`
            self._failure = error

    async def _work(self) -> None:
        with _CONNECTING:
            client = await Client.connect(self._kubeconfig, pool_size=self._workers + 2)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._workers):
                    group.create_task(self._create_on(client))
        finally:
            await client.close()

    async def _create_on(self, client: Client) -> None:
        while not self._over.is_set():
            self._number += 1
            kind = "gpu" if self._gpus else "cpu"
            await self._create(client, pod(f"{kind}-{self._number:05}", self._gpus))
            await asyncio.sleep(self._pace)

    async def _create(self, client: Client, body: Object) -> None:
        name, began = body["metadata"]["name"], time.monotonic()
        try:
            answer = await client.request("POST", self._path, body=body, timeout=30)
            done = Created(name, began, time.monotonic())
            self.tally.created.append(done)
            self.tally.seconds.append(done.ended - began)
            if self._gpus and GATE not in gates(msgspec.json.decode(answer)):
                self.tally.ungated.append(name)
            began = time.monotonic()
            await client.request("GET", f"{self._path}/{name}", timeout=30)
            self.tally.seconds.append(time.monotonic() - began)
        except ClusterError as error:
            self.tally.refused.append(Refused(name, began, str(error)))
            return
        if not self._keep:
            with contextlib.suppress(ClusterError):
                query = [("gracePeriodSeconds", "0")]
                await client.request("DELETE", f"{self._path}/{name}", query=query)
