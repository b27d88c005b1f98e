"""Lists and watches one kind, and returns every change with its version."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

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
MOST_LISTS = 600
"""Lists sent to fill one gap."""
WATCH_SECONDS = 30
PAUSE_SECONDS = 0.2


Snapshot = dict[str, Object]
"""Objects by uid. Old objects are reduced to their identity and version."""


@dataclass(frozen=True, slots=True, order=True)
class Sighting:
    """One object at one version. `at` is the observer's time of the observation.

    `exact`: the change came from a watch. Otherwise a list found it, and earlier changes may be
    missing. `gone`: the object was deleted. `first`: the object existed before the observer
    started.
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
    """Versions of a kind that can no longer be read."""

    kind: str
    after: int
    until: int


class Stream(threading.Thread):
    """One kind. Survives an outage of the API server.

    A restarted API server has no older events (410). The stream then lists each missed version,
    which etcd can serve for some minutes. Versions that it cannot read become a `Hole`.
    """

    def __init__(self, kind: str, api: Api, into: queue.SimpleQueue[Sighting | Hole]) -> None:
        super().__init__(daemon=True, name=kind)
        self.watches = 0
        """How many watches were begun; negative between two."""
        self.cuts: list[float] = []
        """When the connection broke, by our clock."""
        self._kind = kind
        self._api = api
        self._into = into
        self._version = 0
        self._number = 0
        self._known: Snapshot = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Follow until the program ends."""
        while not self._ended.is_set():
            try:
                if not self._version:
                    self._begin()
                self._watch()
            except Refused as error:
                if error.status == 410 and self._version:
                    self._resume()
                else:
                    time.sleep(PAUSE_SECONDS)
            except (OSError, http.client.HTTPException, ValueError):
                self.cuts.append(time.monotonic())
                self._api.close()
                time.sleep(PAUSE_SECONDS)
            finally:
                self.watches = -abs(self.watches)

    def end(self) -> None:
        """Stop after the current watch."""
        self._ended.set()

    def _begin(self) -> None:
        found, version = self._list()
        for each in found.values():
            self._hand_on(each, exact=False, first=True)
        self._version = version

    def _resume(self) -> None:
        """Find the changes since the last version; report a `Hole` if some cannot be read."""
        while not self._ended.is_set():
            try:
                found, version = self._list()
            except (OSError, Refused):
                time.sleep(PAUSE_SECONDS)
                continue
            known = dict(self._known)
            try:
                self._fill(known, self._version, found, version, iter(range(MOST_LISTS)))
            except (OSError, Refused):
                self._step(known, found, version, exact=False)
                self._into.put(Hole(self._kind, self._version, version))
            self._version = version
            return

    def _fill(
        self, old: Snapshot, after: int, new: Snapshot, until: int, lists: Iterator[int]
    ) -> None:
        """Report every change between two snapshots; raises Refused if that needs too many lists.

        Objects created and deleted in between are not seen. `old` becomes `new`.
        """
        if _versions(old) == _versions(new):
            return
        if until - after <= 1:
            self._step(old, new, until, exact=True)
            return
        if next(lists, None) is None:
            raise Refused(410, "too many versions were missed")
        middle = (after + until) // 2
        between, _ = self._list(resourceVersion=str(middle), resourceVersionMatch="Exact")
        self._fill(old, after, between, middle, lists)
        self._fill(old, middle, new, until, lists)

    def _step(self, old: Snapshot, new: Snapshot, version: int, *, exact: bool) -> None:
        for uid in [uid for uid in old if uid not in new]:
            ghost = {"metadata": old.pop(uid)["metadata"] | {"resourceVersion": str(version)}}
            self._hand_on(ghost, gone=True, exact=exact)
        for uid, each in new.items():
            if uid not in old or _version(old[uid]) != _version(each):
                old[uid] = each
                self._hand_on(each, exact=exact)

    def _list(self, **query: str) -> tuple[Snapshot, int]:
        found: Snapshot = {}
        while True:
            page = self._api.get(KINDS[self._kind], limit=PAGE, **query)
            found |= {each["metadata"]["uid"]: each for each in page.get("items") or []}
            token = page["metadata"].get("continue")
            if not token:
                return found, int(page["metadata"]["resourceVersion"])
            query = {"continue": token}

    def _watch(self) -> None:
        answer = self._api.open(
            KINDS[self._kind],
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=str(self._version),
            timeoutSeconds=str(WATCH_SECONDS),
        )
        self.watches = abs(self.watches) + 1
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
            self._known[meta["uid"]] = {"metadata": {k: meta[k] for k in kept if k in meta}}
        now = time.monotonic()
        self._into.put(Sighting(version, self._number, self._kind, item, now, gone, exact, first))


def _versions(snapshot: Snapshot) -> dict[str, int]:
    return {uid: _version(item) for uid, item in snapshot.items()}


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while line := answer.readline():
        if line.strip():
            yield line
