"""Background load: users of several teams create pods that run for a moment and end.

The requests use the users' credentials and bypass every proxy. The number of pods is
bounded, and finished pods are deleted regularly.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.errors import ClusterError, ClusterRefused
from app.core.well_known import ANNOTATION_GANG, ANNOTATION_GANG_SIZE
from app.devcluster.api_client import SetupClient
from tests.support.cluster_driver import Object, pod

RUNTIME = "kwok.fairgate.dev/runtime"
TIDY_EVERY = 40
GANG = 4
END_SECONDS = 30.0


@dataclass(frozen=True)
class Shape:
    """The load: `pods` in total, `rate` per second, each with a random choice of `gpus`."""

    pods: int = 200
    rate: float = 10.0
    gpus: Sequence[int] = (1, 1, 2, 4)
    runtime: str = "2s"
    namespaces: Sequence[str] = ("load-a", "load-b", "load-c")
    seed: int = 0
    tidy: bool = True
    gang_every: int = 0
    """The first `GANG` pods of each group of this size form a gang; 0 means no gangs."""


class Load:
    """One run of a load in a thread. `created` is by namespace, `seconds` is per call."""

    def __init__(self, name: str, shape: Shape, apis: dict[str, SetupClient]) -> None:
        self.shape = shape
        self.created: Counter[str] = Counter()
        self.refused: list[str] = []
        self.unanswered: list[str] = []
        self.seconds: list[float] = []
        self._name = name
        self._apis = apis
        self._random = random.Random(shape.seed)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{name}", daemon=True)
        self._thread.start()

    @property
    def total(self) -> int:
        """The number of created pods."""
        return self.created.total()

    @property
    def over(self) -> bool:
        """Return whether every pod was created or refused."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop creating pods; return after the pending call has ended."""
        self._ending.set()
        self._thread.join(END_SECONDS)
        assert not self._thread.is_alive(), "a creation hangs in the API server"

    def _run(self) -> None:
        begun, namespace = time.monotonic(), self.shape.namespaces[0]
        for number in range(self.shape.pods):
            due = begun + number / self.shape.rate
            if self._ending.wait(max(0.0, due - time.monotonic())):
                break
            gang = self._gang(number)
            if gang is None or number % self.shape.gang_every == 0:
                namespace = self._random.choice(self.shape.namespaces)
            self._create(namespace, self._pod(number, gang))
            if self.shape.tidy and number % TIDY_EVERY == TIDY_EVERY - 1:
                self._tidy(namespace)
        for api in self._apis.values():
            api.__exit__()

    def _gang(self, number: int) -> str | None:
        every = self.shape.gang_every
        return f"{self._name}-{number // every}" if every and number % every < GANG else None

    def _pod(self, number: int, gang: str | None) -> Object:
        made = pod(f"{self._name}-{number}", self._random.choice(self.shape.gpus))
        notes = {RUNTIME: self.shape.runtime} if self.shape.runtime else {}
        if gang is not None:
            notes |= {ANNOTATION_GANG: gang, ANNOTATION_GANG_SIZE: str(GANG)}
        made["metadata"]["annotations"] = notes
        return made

    def _create(self, namespace: str, made: Object) -> None:
        begun = time.monotonic()
        try:
            self._apis[namespace].call("POST", f"/api/v1/namespaces/{namespace}/pods", made)
            self.created[namespace] += 1
        except ClusterRefused as error:
            self.refused.append(str(error))
        except ClusterError as error:  # if a webhook does not answer, the API server returns 500
            self.unanswered.append(str(error))
        self.seconds.append(time.monotonic() - begun)

    def _tidy(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods?fieldSelector=status.phase%3DSucceeded"
        try:
            self._apis[namespace].call("DELETE", path)
        except ClusterError as error:
            self.unanswered.append(str(error))
