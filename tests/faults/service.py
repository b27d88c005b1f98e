"""Imitates a Kubernetes Service: sends new connections to processes that report themselves ready.

Like kube-proxy, it does not check whether the chosen process answers, and it leaves existing
connections alone. It polls readiness, as a kubelet does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.fault_cluster import Rig
from tests.faults.tcp_proxy import Cable

LOOK_SECONDS = 0.5
HOST = "127.0.0.1"

Ready = Callable[[], bool]


@dataclass
class Endpoint:
    """One process behind the Service, reached through `cable`."""

    cable: Cable
    is_ready: Ready
    is_in: bool = False
    left_at: float = 0.0
    """When it was last removed, in monotonic time."""


class Service:
    """Chooses the target of a rig's webhook proxy; use with `with`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._front = rig.front
        self._nowhere = Cable(HOST, 1)
        self._endpoints: list[Endpoint] = []
        self._only: Endpoint | None = None
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._look, name="service", daemon=True)

    def __enter__(self) -> Service:
        self._nowhere.__enter__()
        self._nowhere.cut()
        self._rig.routes = False
        for program in self._rig.of("webhook"):
            self.add(program.listens, program.ready)
        self._front.drop()
        self._looking.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looking.join()
        self._rig.routes = True
        self._front.route(*((HOST, each.listens) for each in self._rig.of("webhook")))
        self._front.drop()
        for cable in (self._nowhere, *(each.cable for each in self._endpoints)):
            cable.__exit__()

    def add(self, port: int, is_ready: Ready = lambda: True) -> Endpoint:
        """Put a process behind the Service; it gets connections when it is ready."""
        endpoint = Endpoint(Cable(HOST, port).__enter__(), is_ready)
        with self._lock:
            self._endpoints.append(endpoint)
            self._lead()
        return endpoint

    def only(self, endpoint: Endpoint | None) -> None:
        """Use only this process, ready or not, and close existing connections; None undoes it."""
        with self._lock:
            self._only = endpoint
            self._lead()
        self._front.drop()

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            with self._lock:
                self._lead()

    def _lead(self) -> None:
        for each in self._endpoints:
            was_in, each.is_in = each.is_in, each.is_ready()
            if was_in and not each.is_in:
                each.left_at = time.monotonic()
        able = [each for each in self._endpoints if each.is_in]
        if self._only is not None:
            able = [self._only]
        ports = [each.cable.port for each in able] or [self._nowhere.port]
        self._front.route(*((HOST, port) for port in ports))
