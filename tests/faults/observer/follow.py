"""Follows every relevant kind and returns the observations in order of resource version.

Versions are integers over all kinds. A version is final after every stream has passed it. Only
final versions are returned. The observations are not judged here.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.faults.observer.cluster import Api, Object, Refused
from tests.faults.observer.stream import KINDS, Hole, Sighting, Stream

PROBE_SECONDS = 2.0
"""A probe costs the API server and this program some milliseconds of CPU time per kind."""
SETTLED_SECONDS = 0.3
"""Seconds from the API server's cache having a version until every watch has delivered it."""


class Progress(threading.Thread):
    """Determines repeatedly which version every stream has passed."""

    def __init__(self, api: Api, streams: list[Stream]) -> None:
        super().__init__(daemon=True, name="progress")
        self._api = api
        self._streams = streams
        self._settled = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._hurried = threading.Event()

    @property
    def settled(self) -> int:
        """The version that every stream has passed."""
        with self._lock:
            return self._settled

    def run(self) -> None:
        """Probe until the program ends."""
        while not self._ended.is_set():
            self._hurried.wait(PROBE_SECONDS)
            watches = [stream.watches for stream in self._streams]
            try:
                version = self.newest()
                for path in KINDS.values():
                    # The cache that feeds the watch answers this, after it has reached the version.
                    self._api.get(
                        path,
                        fieldSelector="metadata.name=none",
                        resourceVersion=str(version),
                        resourceVersionMatch="NotOlderThan",
                    )
            except (OSError, Refused):
                version = 0
            self._ended.wait(SETTLED_SECONDS)
            now = [stream.watches for stream in self._streams]
            if not version or min(watches) <= 0 or watches != now:
                continue  # no answer, or one stream was not watching all the time
            with self._lock:
                self._settled = version

    def newest(self) -> int:
        """Return the newest version, by a quorum read. Raises OSError, Refused."""
        return int(self._api.get(KINDS["leases"], limit="1")["metadata"]["resourceVersion"])

    def hurry(self) -> None:
        """Probe without pauses from now on."""
        self._hurried.set()

    def end(self) -> None:
        """Stop probing."""
        self._ended.set()


class Follower:
    """All kinds, merged. `sightings` returns the final observations, in order."""

    def __init__(self, kubeconfig: Path) -> None:
        self.late = 0
        self.holes: list[Hole] = []
        self._queue: queue.SimpleQueue[Sighting | Hole] = queue.SimpleQueue()
        self._streams = [Stream(kind, Api(kubeconfig), self._queue) for kind in KINDS]
        self._progress = Progress(Api(kubeconfig, 10.0), self._streams)
        self._asking = Api(kubeconfig, 10.0)
        self._heap: list[Sighting] = []
        self._done = 0

    def start(self) -> None:
        """Begin."""
        for thread in (*self._streams, self._progress):
            thread.start()

    @property
    def follows(self) -> bool:
        """Return whether every kind was listed and is watched."""
        return all(stream.watches for stream in self._streams)

    @property
    def cuts(self) -> list[float]:
        """Times at which connections broke."""
        return [cut for stream in self._streams for cut in stream.cuts]

    @property
    def settled(self) -> int:
        """The version up to which all observations were returned."""
        return self._done

    def sightings(self) -> Iterator[Sighting]:
        """Return each final observation once, in order of versions."""
        if not self.follows:
            return
        final = self._progress.settled  # read first: the queue then contains all up to this version
        while not self._queue.empty():
            each = self._queue.get()
            if isinstance(each, Hole):
                self.holes.append(each)
            else:
                heapq.heappush(self._heap, each)
        while self._heap and self._heap[0].version <= final:
            sighting = heapq.heappop(self._heap)
            if sighting.exact and sighting.version < self._done:
                self.late += 1
            self._done = max(self._done, sighting.version)
            yield sighting
        self._done = max(self._done, final)

    def newest(self) -> int:
        """Return the newest version. Raises OSError, Refused."""
        return int(self._asking.get(KINDS["leases"], limit="1")["metadata"]["resourceVersion"])

    def find(self, path: str) -> Object | None:
        """Return an object, None if absent. Raises OSError, Refused."""
        try:
            return self._asking.get(path)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    def hurry(self) -> None:
        """Report final observations as soon as possible from now on."""
        self._progress.hurry()

    def end(self) -> None:
        """Stop following."""
        for stream in self._streams:
            stream.end()
        self._progress.end()
