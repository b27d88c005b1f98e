"""Lists and watches the kinds that matter, and hands on what was seen in order of versions.

Versions are whole numbers over all kinds. A version is final once every stream is known to have
passed it: only then is it handed on. Nothing is judged here.
"""

from __future__ import annotations

import heapq
import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.observer.cluster import Api, Object, Refused

KINDS = {
    "pods": "/api/v1/pods",
    "nodes": "/api/v1/nodes",
    "tenants": "/apis/fairgate.io/v1alpha1/tenants",
    "pools": "/apis/fairgate.io/v1alpha1/pools",
    "policies": "/apis/fairgate.io/v1alpha1/policies",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/fairgate-system/leases",
}
PAGE = "500"
WATCH_SECONDS = 30
PAUSE_SECONDS = 0.2
PROBE_SECONDS = 0.5
SETTLED_SECONDS = 0.3
"""From when the API server's own cache has a version until we surely have it too."""


@dataclass(frozen=True, slots=True, order=True)
class Sighting:
    """One object at one version. `at` is when it was seen, by our clock.

    `exact`: this is a change as it happened; else it was found by a list, and what lay between
    was not seen. `gone`: it is deleted. `first`: it was there before we were.
    """

    version: int
    number: int
    kind: str = field(compare=False)
    object: Object = field(compare=False, repr=False)
    at: float = field(compare=False)
    gone: bool = field(compare=False, default=False)
    exact: bool = field(compare=False, default=True)
    first: bool = field(compare=False, default=False)


@dataclass(frozen=True, slots=True)
class Hole:
    """Versions of a kind that nobody can show us any more."""

    kind: str
    after: int
    until: int


class Stream(threading.Thread):
    """One kind. Survives that the API server goes away; only a 410 makes a hole."""

    def __init__(self, kind: str, api: Api, into: queue.SimpleQueue[Sighting | Hole]) -> None:
        super().__init__(daemon=True, name=kind)
        self.follows = threading.Event()
        self.cuts: list[float] = []
        """When the connection broke, by our clock."""
        self._kind = kind
        self._api = api
        self._into = into
        self._version = 0
        self._number = 0
        self._known: dict[str, Object] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Follow until the program ends."""
        while not self._ended.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except Refused as error:
                if error.status == 410 and self._version:
                    self._list_again()
                else:
                    time.sleep(PAUSE_SECONDS)
            except (OSError, http.client.HTTPException, ValueError):
                self.cuts.append(time.monotonic())
                self._api.close()
                time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        """Stop after the present watch."""
        self._ended.set()

    def _list_again(self) -> None:
        """What happened in between is lost: say so, and go on from what is there now."""
        before = self._version
        while True:
            try:
                self._list()
                break
            except (OSError, Refused):
                time.sleep(PAUSE_SECONDS)
        self._into.put(Hole(self._kind, before, self._version))

    def _list(self) -> None:
        first = not self._version
        found: list[Object] = []
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = self._api.get(KINDS[self._kind], limit=PAGE, **more)
            found += page.get("items") or []
            token = page["metadata"].get("continue") or ""
            if not token:
                break
        version = int(page["metadata"]["resourceVersion"])
        seen = {each["metadata"]["uid"] for each in found}
        for uid in [uid for uid in self._known if uid not in seen]:
            ghost = {"metadata": self._known[uid] | {"resourceVersion": str(version)}}
            self._hand_on(ghost, gone=True, exact=False)
        for each in found:
            known = self._known.get(each["metadata"]["uid"])
            if known is None or known["resourceVersion"] != each["metadata"]["resourceVersion"]:
                self._hand_on(each, exact=False, first=first)
        self._version = version

    def _watch(self) -> None:
        answer = self._api.open(
            KINDS[self._kind],
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=str(self._version),
            timeoutSeconds=str(WATCH_SECONDS),
        )
        self.follows.set()
        for line in _lines(answer):
            event = json.loads(line)
            item: Object = event["object"]
            if event["type"] == "ERROR":
                raise Refused(int(item.get("code", 500)), str(item.get("message")))
            self._version = max(self._version, _version(item))
            if event["type"] != "BOOKMARK":
                self._hand_on(item, gone=event["type"] == "DELETED")

    def _hand_on(
        self, item: Object, *, gone: bool = False, exact: bool = True, first: bool = False
    ) -> None:
        meta, version = item["metadata"], _version(item)
        self._number += 1
        if gone:
            self._known.pop(meta["uid"], None)
        else:
            kept = ("uid", "name", "namespace", "resourceVersion")
            self._known[meta["uid"]] = {key: meta[key] for key in kept if key in meta}
        now = time.monotonic()
        self._into.put(Sighting(version, self._number, self._kind, item, now, gone, exact, first))


class Progress(threading.Thread):
    """Finds out, again and again, which version every stream has surely passed."""

    def __init__(self, api: Api) -> None:
        super().__init__(daemon=True, name="progress")
        self._api = api
        self._settled = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @property
    def settled(self) -> int:
        """The version."""
        with self._lock:
            return self._settled

    def run(self) -> None:
        """Probe until the program ends."""
        while not self._ended.wait(PROBE_SECONDS):
            try:
                version = self.newest()
                for path in KINDS.values():
                    # Answered from the cache that feeds our watch, once it is as new as that.
                    self._api.get(
                        path,
                        fieldSelector="metadata.name=none",
                        resourceVersion=str(version),
                        resourceVersionMatch="NotOlderThan",
                    )
            except (OSError, Refused):
                continue
            self._ended.wait(SETTLED_SECONDS)
            with self._lock:
                self._settled = version

    def newest(self) -> int:
        """Return the newest version there is, by a quorum read. Raises OSError, Refused."""
        return int(self._api.get(KINDS["leases"], limit="1")["metadata"]["resourceVersion"])

    def end(self) -> None:
        """Stop probing."""
        self._ended.set()


class Follower:
    """All kinds, merged. `sightings` gives what is final by now, in order."""

    def __init__(self, kubeconfig: Path) -> None:
        self.late = 0
        self.holes: list[Hole] = []
        self._queue: queue.SimpleQueue[Sighting | Hole] = queue.SimpleQueue()
        self._streams = [Stream(kind, Api(kubeconfig), self._queue) for kind in KINDS]
        self._progress = Progress(Api(kubeconfig, 10.0))
        self._asking = Api(kubeconfig, 10.0)
        self._heap: list[Sighting] = []
        self._done = 0

    def start(self) -> None:
        """Begin."""
        for thread in (*self._streams, self._progress):
            thread.start()

    @property
    def follows(self) -> bool:
        """Tell whether every kind was listed, and is watched."""
        return all(stream.follows.is_set() for stream in self._streams)

    @property
    def cuts(self) -> list[float]:
        """When connections broke."""
        return [cut for stream in self._streams for cut in stream.cuts]

    @property
    def settled(self) -> int:
        """The version up to which everything was handed on."""
        return self._done

    def sightings(self) -> Iterator[Sighting]:
        """Return, once, what is final; in order of versions."""
        if not self.follows:
            return
        final = self._progress.settled  # before the queue is emptied: it holds all up to this
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
        """Return the newest version there is. Raises OSError, Refused."""
        return int(self._asking.get(KINDS["leases"], limit="1")["metadata"]["resourceVersion"])

    def end(self) -> None:
        """Stop following."""
        for stream in self._streams:
            stream.end()
        self._progress.end()


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := answer.readline():
        if line.strip():
            yield line
