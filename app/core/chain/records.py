"""What the audit chain is told: each thing once, whoever leads.

A pod's note says what the chain last told of it, and is kept with the chain: a new leader tells
what the last one did not. Decides nothing, and says nothing while nobody leads here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from app.core.audit import UNKNOWN, Deed, Fact, Record
from app.core.chain.changes import Changes, Configured, is_resource, key_of, spec_of
from app.core.chain.facts import adopted, because, intended, reason, released, texts, who
from app.core.effects import (
    Bypassed,
    Cause,
    Effect,
    Evict,
    Expel,
    Forget,
    Intend,
    PodRef,
    Release,
)
from app.core.fair.tenancy import Tenancy
from app.core.model import ADOPTED, GATE, Answer, Millis, Pod, TenantName, Uid
from app.core.pods.life import Life
from app.core.pods.oversight import Oversight, Right
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.policy import Policy
from app.core.turns.evictions import taking_of
from app.core.turns.truces import Truces, is_taking

HELD, RELEASED, BYPASSED = Deed.HELD.value, Deed.RELEASED.value, Deed.BYPASSED.value
PAST = frozenset((RELEASED, Deed.ADOPTED.value))
"""Notes of pods that are rightly past the gate."""

MOST_ENDED = 4096
"""Pods that ended while this replica followed, and that it may yet have to tell of."""

AT_ONCE = 1000
"""Pods that a new leader tells of at once, and that nobody has told of ..."""
PACE_MS = 1000
"""... and how long until the next: what writes them down has room for ten times as many."""

UNREMEMBERED = (
    "Redis had lost what was recorded of the pods that are there: what happened to them since the "
    "last entry before this may be missing"
)

_STAMP = re.compile(r"[1-9]\d{0,11}\.[1-9]\d{0,14}", re.ASCII)


class Records:
    """Keeps what is due to be told. `take` gives it away."""

    def __init__(
        self,
        roster: Roster,
        tenancy: Tenancy,
        oversight: Oversight,
        truces: Truces,
        *,
        silent: bool = False,
    ) -> None:
        """`silent`: nothing is told, as where nobody listens."""
        self._roster = roster
        self._tenancy = tenancy
        self._oversight = oversight
        self._truces = truces
        self._changes = Changes()
        self._silent = silent
        self._leads = False
        self._out: list[Effect] = []
        self._orders: dict[Uid, Release] = {}
        self._evictions: dict[Uid, Evict | Expel] = {}
        self._over: dict[Uid, Pod] = {}
        """Pods that are finished, past the gate, and not deleted yet: their notes stay."""
        self._noted: set[Uid] = set()
        self._ended: dict[Uid, Pod] = {}
        self._untold: dict[Uid, tuple[Tracked, bool]] = {}
        """Pods that were there when the term began, and are to be told of; did they wait then?"""
        self._remind_at = Millis(0)

    @property
    def _now(self) -> Millis:
        return self._roster.usage.now

    def begin(self, notes: Mapping[str, str] | None, intents: Iterable[Intend]) -> None:
        """A term begins: tell what nobody has told, of what came and went while nobody led."""
        if self._silent:
            return
        self._leads = True
        if notes is None:
            self._assume()
        else:
            self._truces.recall(notes, self._now)
            self._recall(notes, {intent.ref.uid: intent for intent in intents})
        self._ended.clear()
        self._out += self._changes.begin(self._now, notes)
        for uid, tracked in self._roster.pods.items():
            waits = tracked.life is not Life.USING
            if tracked.noted not in PAST and not (waits and tracked.noted):
                self._untold[uid] = tracked, waits
        self._remind_at = self._now

    def remind(self) -> None:
        """Tell some of what nobody has told of the pods that were there when the term began."""
        over = self._truces.expire(self._now)
        self._out += [Forget(key) for key in over if self._leads]
        if self._untold and self._now >= self._remind_at:
            self._remind_at = Millis(self._now + PACE_MS)
            for uid in list(islice(self._untold, AT_ONCE)):
                self._catch_up(uid)

    def end(self) -> None:
        """A term is over: what was not answered shows in the pods themselves."""
        self._leads = False
        self._changes.end()
        self._noted.clear()
        self._untold.clear()
        self._orders.clear()
        self._evictions.clear()
        for tracked in self._roster.pods.values():
            tracked.noted = ""

    def take(self) -> list[Effect]:
        """Return, once, what is to be told."""
        out, self._out = self._out, []
        return out

    def seen(self, tracked: Tracked) -> None:
        """A pod waits."""
        if not self._leads or tracked.noted:
            return
        pod = tracked.pod
        facts = who(pod, pod.user, self._tenant(pod)) | {
            "amounts": texts(pod.demand),
            "priority": pod.priority,
            "since": pod.since,
        }
        if (gang := tracked.gang) is not None:
            facts |= {"gang": gang.name} | ({"gangSize": gang.size} if gang.size else {})
        self._note(tracked, Deed.HELD, facts)

    def ordered(self, effects: Iterable[Effect]) -> None:
        """These were asked for: what becomes of them is told with the reason."""
        for effect in effects if self._leads else ():
            match effect:
                case Release():
                    self._orders[effect.intent.ref.uid] = effect
                case Evict() | Expel():
                    self._evictions[effect.ref.uid] = effect
                case Bypassed():
                    self._bypassed(effect)
                case _:
                    pass

    def passed(self, tracked: Tracked, right: Right) -> None:
        """A pod is past the gate, and rightly so."""
        self._catch_up(tracked.pod.uid)
        if not self._leads or tracked.noted in PAST:
            return
        pod = tracked.pod
        if right is Right.ADOPTED and not is_by_hand(pod, tracked.noted):
            self._note(tracked, Deed.ADOPTED, adopted(pod, self._tenant(pod), tracked.pool))
        else:
            order = self._orders.pop(pod.uid, None)
            self._note(tracked, Deed.RELEASED, released(pod, self._tenant(pod), order, self._now))

    def answered(self, uid: Uid, answer: Answer) -> None:
        """A release was answered. The pod may have shown what became of it before, or be gone."""
        order = self._orders.get(uid)
        if order is None or (answer is Answer.GONE and uid in self._roster.pods):
            return  # gone may be finished: its last sighting tells
        self._catch_up(uid)
        del self._orders[uid]
        if answer is Answer.RELEASED:
            tracked = self._roster.pods.get(uid)
            facts = intended(order.intent) | because(order, self._now)
            if tracked is not None:
                self._note(tracked, Deed.RELEASED, facts)
            else:
                self._say(Deed.RELEASED, facts)  # nothing is there that a note could be about

    def evicted(self, uid: Uid) -> None:
        """An eviction was accepted."""
        eviction, tracked = self._evictions.pop(uid, None), self._roster.pods.get(uid)
        if self._leads and eviction is not None and tracked is not None:
            self._reclaimed(tracked, eviction)

    def over(self, pod: Pod, *, live: bool) -> None:
        """A pod is finished, or about to be deleted; its last sightings tell how it got here."""
        if self._silent:
            return
        self._catch_up(pod.uid)
        if GATE in pod.gates:
            return
        known, tracked = pod.uid in self._over, self._roster.pods.get(pod.uid)
        self._over[pod.uid] = pod
        if not self._leads or (known and tracked is None):
            return
        noted = tracked.noted if tracked is not None else ""
        if tracked is not None:
            tracked.noted = ""  # kept until it is deleted
        if noted not in PAST and noted != BYPASSED:
            order = self._orders.pop(pod.uid, None)
            ordered = order is not None and order.stamp == pod.release
            if ordered or self._oversight.judge(pod, live=live) is not None:
                self._say_over(pod, noted, order)
                return
            if tracked is None:
                return
            facts = who(pod, pod.user, self._tenant(pod))
            facts |= {"stamp": pod.release, "by": pod.freed_by or UNKNOWN}
            self._say(Deed.BYPASSED, facts, ((pod.uid, BYPASSED),))
        self._noted.add(pod.uid)

    def gone(self, tracked: Tracked) -> None:
        """A pod is finished, or no more."""
        eviction = self._evictions.pop(tracked.pod.uid, None)
        if not self._leads:
            return
        if eviction is not None and tracked.evicted:
            self._reclaimed(tracked, eviction)
        if tracked.noted:
            tracked.noted = ""
            self._out.append(Forget(tracked.pod.uid))

    def vanished(self, uid: Uid) -> None:
        """There is no pod of this uid any more. Say so before it is dropped."""
        if self._silent:
            return
        self._catch_up(uid)
        pod, tracked = self._over.pop(uid, None), self._roster.pods.get(uid)
        if self._leads:
            if uid in self._noted:
                self._noted.discard(uid)
                self._out.append(Forget(uid))
            if tracked is None:
                self._orders.pop(uid, None)
        elif pod is not None:
            self._keep(pod)
        elif tracked is not None and tracked.life is Life.USING:
            self._keep(tracked.pod)

    def configured(self, what: Configured, by: str) -> None:
        """A resource exists in this state; "": nobody can tell who made it so."""
        name = "default" if isinstance(what, Policy) else what.name
        key = key_of(type(what), name)
        self._out += self._changes.put(self._now, key, spec_of(what), by)

    def dropped(self, kind: type[Configured], name: str = "default") -> None:
        """A resource exists no more."""
        self._out += self._changes.drop(self._now, key_of(kind, name))

    def notes(self) -> Iterator[tuple[str, str]]:
        """Return what was told of all that is there."""
        yield from self._changes.notes()
        yield from self._truces.notes()
        for tracked in self._roster.pods.values():
            if tracked.noted:
                yield tracked.pod.uid, tracked.noted
        for uid in self._noted:
            yield uid, RELEASED

    def _catch_up(self, uid: Uid) -> None:
        """Tell of a pod what it was when the term began, before anything else is told of it."""
        tracked, waited = self._untold.pop(uid, (None, False))
        if tracked is None:
            return
        right = self._oversight.right_of(uid)
        if waited:
            self.seen(tracked)
        elif right is not None:
            self.passed(tracked, right)

    def _reclaimed(self, tracked: Tracked, eviction: Evict | Expel) -> None:
        pod = tracked.pod
        facts = who(pod, pod.user, self._tenant(pod)) | reason(eviction)
        notes: tuple[tuple[str, str], ...] = ()
        if isinstance(eviction, Evict) and eviction.cause is not Cause.PRIORITY:
            notes = (self._truces.sign(taking_of(eviction), self._now),)
        self._say(Deed.RECLAIMED, facts, notes)

    def _bypassed(self, found: Bypassed) -> None:
        self._catch_up(found.ref.uid)
        tracked = self._roster.pods.get(found.ref.uid)
        if tracked is None or tracked.noted == BYPASSED:
            return
        facts = who(found.ref, found.user, self._tenant(found.ref)) | {
            "stamp": found.stamp,
            "node": found.node or "",
            "by": tracked.pod.freed_by or UNKNOWN,
        }
        self._note(tracked, Deed.BYPASSED, facts)

    def _assume(self) -> None:
        """Nobody knows what was told: one entry says so, and all that is there counts as told."""
        waiting = using = 0
        for tracked in self._roster.pods.values():
            waits = tracked.life is not Life.USING
            waiting, using = waiting + waits, using + (not waits)
            tracked.noted = HELD if waits else RELEASED
        self._noted.update(self._over)
        facts: dict[str, Fact] = {"why": UNREMEMBERED, "waiting": waiting, "using": using}
        self._say(Deed.HELD, facts)

    def _recall(self, notes: Mapping[str, str], intents: Mapping[Uid, Intend]) -> None:
        for tracked in self._roster.pods.values():
            tracked.noted = notes.get(tracked.pod.uid, "")
        for uid, pod in self._over.items():
            noted = notes.get(uid, "")
            if noted and noted != HELD:
                self._noted.add(uid)
            elif _is_stamped(pod):
                self._say_over(pod, noted, None)
        for key, text in notes.items():
            uid = Uid(key)
            if is_resource(key) or is_taking(key):
                continue
            if uid in self._roster.pods or uid in self._noted:
                continue
            if text == HELD and uid not in self._over:
                self._missed(uid, intents.get(uid))
            self._out.append(Forget(key))

    def _missed(self, uid: Uid, intent: Intend | None) -> None:
        """A pod came to its end while nobody led: was it released before?"""
        pod = self._ended.get(uid)
        if pod is not None:
            self._say(Deed.RELEASED, released(pod, self._tenant(pod), None, self._now))
        elif intent is not None:
            self._say(Deed.RELEASED, intended(intent) | {"settled": True, "certain": False})

    def _keep(self, pod: Pod) -> None:
        if not _is_stamped(pod):
            return
        if pod.uid not in self._ended and len(self._ended) >= MOST_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[pod.uid] = pod

    def _tenant(self, pod: Pod | PodRef) -> TenantName:
        return self._tenancy.tenant_of(pod.namespace)

    def _say_over(self, pod: Pod, noted: str, order: Release | None) -> None:
        self._noted.add(pod.uid)
        deed, facts = Deed.RELEASED, released(pod, self._tenant(pod), order, self._now)
        if pod.release == ADOPTED and not is_by_hand(pod, noted):
            deed, facts = Deed.ADOPTED, adopted(pod, self._tenant(pod), pod.pool)
        self._say(deed, facts, ((pod.uid, deed.value),))

    def _note(self, tracked: Tracked, deed: Deed, facts: Mapping[str, Fact]) -> None:
        tracked.noted = deed.value
        self._say(deed, facts, ((tracked.pod.uid, deed.value),))

    def _say(
        self, deed: Deed, facts: Mapping[str, Fact], notes: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._out.append(Record(self._now, deed, facts, notes))


def is_by_hand(pod: Pod, noted: str) -> bool:
    """Tell whether a person took the gate off a pod that was held.

    What a pod says of itself does not show it: where nothing is enforced, anybody may write that.
    """
    return pod.release == ADOPTED and noted == HELD


def _is_stamped(pod: Pod) -> bool:
    """Tell whether a pod says of itself that it was released, by the leader or by hand."""
    by_hand = pod.release == ADOPTED and bool(pod.freed_by)
    return by_hand or _STAMP.fullmatch(pod.release) is not None
