"""Checks the observations in order of versions: invariants I1 to I5 of the design.

It does no I/O. Time comes from the observations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.observer import objects
from tests.faults.observer.books import Books
from tests.faults.observer.cluster import Object
from tests.faults.observer.objects import ADOPTED, Layout, Managed, Node, Pod, Pool, Tenant
from tests.faults.observer.stream import Sighting

OBSERVE_SECONDS = 10.0
"""Seconds after Observe mode in which pods that no webhook held may still appear."""


READERS: dict[str, Callable[[Object], Tenant | Pool | Node]] = {
    "nodes": objects.node,
    "tenants": objects.tenant,
    "pools": objects.pool,
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """Exceptions announced by a scenario.

    `grace`: seconds in which an older, wider bound counts.
    """

    grace: float = 5.0
    bypass: bool = False
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant: its name, the observation and its version."""

    invariant: str
    what: str
    at: int


@dataclass(slots=True)
class Term:
    """Releases of one epoch, with the lowest and the highest observed version."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Release:
    """A removed gate: pod, version and stamp."""

    pod: Pod
    version: int
    at: float
    exact: bool = field(default=True)


class Judge:
    """Checks invariants I1 to I5. `pods` are all managed pods that exist."""

    def __init__(self, managed: Managed, exempt: frozenset[str], allowed: Allowed) -> None:
        self.pods: dict[str, Pod] = {}
        self.layout = Layout()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.releases: list[Release] = []
        self.bypassed: dict[str, str] = {}
        self._managed = managed
        self._exempt = exempt
        self._allowed = allowed
        self._books = Books(self.layout)
        self._before: deque[tuple[float, Layout]] = deque()
        self._stamps: dict[str, str] = {}
        self._terms: dict[int, Term] = {}
        self._strays: dict[str, float] = {}
        self._observing = False
        self._enforced = float("-inf")
        self._holder = ""

    def take(self, seen: Sighting) -> None:
        """Process one observation; append to `violations`."""
        self.counts["versions"] += 1
        try:
            if seen.kind == "pods":
                self._pod(seen)
            elif seen.kind == "policies":
                self._policy(seen)
            elif seen.kind == "leases":
                self._lease(seen.object)
            else:
                self._lay_out(seen)
        except (ValueError, ArithmeticError, KeyError, TypeError) as error:
            # The API server may store objects that the observer cannot parse. Report these.
            self.counts["unreadable"] += 1
            self.blame("observer", f"{seen.kind} not readable: {error!r}", seen.version)

    def blame(self, invariant: str, what: str, version: int) -> None:
        """Record a violation."""
        self.violations.append(Violation(invariant, what, version))

    def finish(self, version: int) -> None:
        """Check the conditions on the final state."""
        for uid in self._strays:
            pod = self.pods.get(uid)
            if pod is None or not pod.uses or pod.stamp == ADOPTED or uid in self.bypassed:
                continue
            self.blame("I4", f"{pod} was there before and is not adopted", version)
        self.counts["epochs"] = len(self._terms)
        self.counts["held at the end"] = sum(pod.waits for pod in self.pods.values())
        self.counts["using at the end"] = sum(pod.uses for pod in self.pods.values())

    def _lay_out(self, seen: Sighting) -> None:
        value: Tenant | Pool | Node | None = None
        name = seen.object["metadata"]["name"]
        if not seen.gone:
            value = READERS[seen.kind](seen.object)
        layout = self.layout.but(seen.kind, name, value)
        if layout is self.layout:
            return
        self.counts[f"changes of {seen.kind}"] += 1
        self._before.append((seen.at, self.layout))
        self.layout = layout
        self._books = Books(layout, self.pods.values())

    def _policy(self, seen: Sighting) -> None:
        mode = "Enforce" if seen.gone else (seen.object.get("spec") or {}).get("mode", "Enforce")
        if self._observing and mode != "Observe":
            self._enforced = seen.at
        self._observing = mode == "Observe"

    def _lease(self, lease: Object) -> None:
        holder = (lease.get("spec") or {}).get("holderIdentity") or ""
        if holder and holder != self._holder:
            self.counts["changes of leader"] += 1
            self._holder = holder

    def _pod(self, seen: Sighting) -> None:
        uid = seen.object["metadata"]["uid"]
        old = self.pods.get(uid)
        new = None if seen.gone else self._managed.pod(seen.object)
        if new is not None and new.namespace in self._exempt:
            return
        if old is not None:
            self._books.count(old, -1)
            del self.pods[uid]
        if new is None:
            self._end(old)
            return
        self.pods[uid] = new
        self._books.count(new)
        if old is None:
            self._came(new, seen)
        else:
            self._changed(old, new, seen)
        self._judge_place(old, new, seen)

    def _end(self, old: Pod | None) -> None:
        if old is not None:
            self.counts["deleted"] += 1
            self._strays.pop(old.uid, None)

    def _came(self, new: Pod, seen: Sighting) -> None:
        self.counts["pods"] += 1
        if new.gated:
            self._check_held(new, seen)
            return
        if seen.exact:
            self._stray(new, seen, "was created past the gate")
        elif new.release:
            self._released(new, seen)
        elif new.stamp != ADOPTED:
            self._stray(new, seen, "is past the gate without a stamp")

    def _changed(self, old: Pod, new: Pod, seen: Sighting) -> None:
        if not old.over and new.over:
            self.counts["finished"] += 1
        if new.gated:
            if not old.gated:
                self.blame("I2", f"{new} has its gate back", seen.version)
            if 0 < new.fence < old.fence:
                what = f"{new}: fence of epoch {new.fence} after one of {old.fence}"
                self.blame("I5", what, seen.version)
            self._check_held(new, seen)
        elif old.gated:
            self._opened(new, seen)
        elif old.stamp != new.stamp:
            if new.stamp == ADOPTED and not old.release:
                self.counts["adopted"] += 1
            else:
                what = f"{new} is past the gate; its stamp {old.stamp!r} became {new.stamp!r}"
                self.blame("I2", what, seen.version)

    def _check_held(self, pod: Pod, seen: Sighting) -> None:
        if pod.release or pod.stamp == ADOPTED:
            self.blame("I2", f"{pod} is held and has the stamp {pod.stamp!r}", seen.version)

    def _opened(self, pod: Pod, seen: Sighting) -> None:
        if pod.release:
            self._released(pod, seen)
        elif pod.stamp == ADOPTED and self._allowed.by_hand:
            self.counts["released by hand"] += 1
        else:
            self._strays[pod.uid] = seen.at
            what = f"the gate of {pod} went with the stamp {pod.stamp!r}"
            self.blame("I2", what, seen.version)

    def _released(self, pod: Pod, seen: Sighting) -> None:
        assert pod.release is not None
        self.counts["released"] += 1
        self.releases.append(Release(pod, seen.version, seen.at, seen.exact))
        twin = self._stamps.setdefault(pod.stamp, pod.uid)
        if twin != pod.uid:
            what = f"{pod} has the stamp {pod.stamp} of pod {twin}"
            self.blame("I2", what, seen.version)
        if not seen.exact:
            return
        self._judge_epoch(pod, pod.release[0], seen.version)
        self._judge_room(pod, seen, self._books.excess(pod), "excess")

    def _judge_epoch(self, pod: Pod, epoch: int, version: int) -> None:
        for other, term in self._terms.items():
            if (other > epoch and term.first < version) or (other < epoch and term.last > version):
                what = f"{pod} released under epoch {epoch} at {version}, but epoch {other} "
                self.blame("I5", what + f"at {term.first} to {term.last}", version)
        term = self._terms.setdefault(epoch, Term(version, version))
        term.first, term.last = min(term.first, version), max(term.last, version)

    def _judge_place(self, old: Pod | None, new: Pod, seen: Sighting) -> None:
        was = old is not None and (bool(old.node) or old.phase == "Running")
        if was or not (new.node or new.phase == "Running"):
            return
        self.counts["bound"] += 1
        if new.release or new.stamp == ADOPTED:
            if new.release and new.node and seen.exact and new.uid not in self._strays:
                self._judge_room(new, seen, self._books.crowded(new), "crowded")
        elif new.uid in self.bypassed and not self._allowed.bypass:
            self.blame("I4", f"{new} is bound to {new.node!r} and was not released", seen.version)
        elif new.uid not in self._strays:
            self.blame("I4", f"{new} is bound to {new.node!r}: {new.stamp!r}", seen.version)

    def _judge_room(self, pod: Pod, seen: Sighting, found: list[str], rule: str) -> None:
        """Record excess only if it violates every layout of the last `grace` seconds."""
        if not found:
            return
        while self._before and self._before[0][0] < seen.at - self._allowed.grace:
            self._before.popleft()
        fresh = {u for u, at in self._strays.items() if at >= seen.at - self._allowed.grace}
        known = [each for each in self.pods.values() if each.uid not in fresh]
        for layout in (self.layout, *(layout for _, layout in self._before)):
            if not getattr(Books(layout, known), rule)(pod):
                self.counts["over a bound that had just shrunk"] += 1
                return
        for what in found:
            self.blame("I3", f"{pod} released with {pod.stamp}: {what}", seen.version)

    def _stray(self, pod: Pod, seen: Sighting, what: str) -> None:
        """Handle a pod without a gate that has no observed release."""
        self._strays[pod.uid] = seen.at
        just = seen.at - self._enforced < OBSERVE_SECONDS
        if seen.first or self._observing or just or pod.mirror or pod.over:
            return
        self.bypassed[pod.uid] = f"{pod.namespace}/{pod.name}"
        if not self._allowed.bypass:
            self.blame("I1", f"{pod} {what} ({pod.stamp!r})", seen.version)
