"""Who is past the gate, and by what right: released, adopted, or neither.

Who was there before us is adopted; who got round the gate is reported, once a term. What a pod
says of its own release is believed as far as nothing contradicts it. Changes no counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from app.core.admission.gate import release_labels
from app.core.effects import Adopt, Bypassed, Effect, Expel, Notice, Release, Tell
from app.core.model import ADOPTED, LABEL_POOL, Millis, Pod, Uid
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.policy import Mode
from app.core.repeats import Repeats

_RELEASED = re.compile(r"([1-9]\d{0,11})\.[1-9]\d{0,14}", re.ASCII)

CHANGE_MS = 10_000
"""So long after Observe ends pods may still come that no webhook held."""

BYPASSED = (
    "it was never released by Fairgate: its scheduling gate was taken off, or never put on; "
    "delete it and create it again, and it waits for its turn"
)


class Right(Enum):
    """By what right a pod is past the gate."""

    RELEASED = "released"
    ADOPTED = "adopted"


class Oversight:
    """Judges who is past the gate. Says nothing before `since` is known."""

    def __init__(self, roster: Roster, evicts: bool) -> None:
        self.since: Millis | None = None
        self._roster = roster
        self._evicts = evicts
        self._epoch: int | None = None
        self._mode: Mode | None = None
        self._enforced: Millis | None = None
        self._rights: dict[Uid, Right] = {}
        self._stamps: dict[str, Uid] = {}
        self._stamp_of: dict[Uid, str] = {}
        self._ordered: dict[Uid, str] = {}
        self._created_with: dict[Uid, str] = {}
        self._strays: dict[Uid, Tracked] = {}
        self._unjudged: dict[Uid, Tracked] = {}
        self._reported: set[Uid] = set()
        self._adopting = Repeats()
        self._expelling = Repeats()

    def begin(self, epoch: int) -> None:
        """A term begins: every stray is judged anew."""
        self._epoch = epoch
        self._ordered.clear()
        self._reported.clear()
        self._adopting.clear()
        self._expelling.clear()
        for stamp, uid in list(self._stamps.items()):
            if int(stamp.partition(".")[0]) >= epoch:  # nobody can have released under it
                del self._stamps[stamp], self._stamp_of[uid], self._rights[uid]
                self._strays[uid] = self._roster.pods[uid]
        self._unjudged = dict(self._strays)

    def end(self) -> None:
        """A term is over."""
        self._epoch = None

    def rule(self, mode: Mode, at: Millis) -> None:
        """This mode is in force from now on."""
        if mode is self._mode:
            return
        if self._mode is Mode.OBSERVE:
            self._enforced = at
        self._mode = mode
        self._unjudged = dict(self._strays)

    def order(self, effects: Iterable[Effect]) -> None:
        """These releases were asked for: no pod but theirs may carry their stamps."""
        for effect in effects:
            if isinstance(effect, Release):
                self._ordered[effect.intent.ref.uid] = effect.stamp

    def withdraw(self, uid: Uid) -> None:
        """A release that was asked for has certainly not happened."""
        self._ordered.pop(uid, None)

    def see(self, tracked: Tracked, *, new: bool, live: bool) -> Right | None:
        """A pod past the gate was seen; return its right to be there, if it has any.

        `live`: nothing that happened to pods was missed before this; `new`: it was not known.
        So who is both was created past the gate, and its stamp with it.
        """
        pod = tracked.pod
        uid, stamp = pod.uid, pod.release
        right = self._rights.get(uid)
        if right is not None:
            return right
        if new and live:
            self._created_with[uid] = stamp
        right = self._right(uid, stamp, live)
        if right is not None:
            self._settle(tracked, right)
        elif uid not in self._strays:
            self._strays[uid] = self._unjudged[uid] = tracked
        return right

    def judge(self, pod: Pod, *, live: bool) -> Right | None:
        """Return by what right a pod is, or was, past the gate. Changes nothing."""
        return self._rights.get(pod.uid) or self._right(pod.uid, pod.release, live)

    def right_of(self, uid: Uid) -> Right | None:
        """Return by what right a pod was found past the gate; None: by none, or not found there."""
        return self._rights.get(uid)

    def forget(self, uid: Uid) -> None:
        """A pod is gone."""
        self._rights.pop(uid, None)
        self._strays.pop(uid, None)
        self._unjudged.pop(uid, None)
        self._ordered.pop(uid, None)
        self._created_with.pop(uid, None)
        stamp = self._stamp_of.pop(uid, None)
        if stamp is not None:
            del self._stamps[stamp]
        self._reported.discard(uid)
        self._adopting.drop(uid)
        self._expelling.drop(uid)

    def due(self) -> Millis | None:
        """Return when there is more to do by time alone."""
        due = [each.due() for each in (self._adopting, self._expelling)]
        return min((at for at in due if at is not None), default=None)

    def run(self, now: Millis) -> list[Effect]:
        """Judge those not judged yet; ask again for what has not happened yet."""
        if self.since is None:
            return []
        effects: list[Effect] = []
        unjudged, self._unjudged = self._unjudged, {}
        for tracked in unjudged.values():
            effects += self._judge(tracked, now)
        effects += [self._adopt(self._strays[uid]) for uid in self._adopting.take(now)]
        for uid in self._expelling.take(now):
            tracked = self._strays[uid]
            if not tracked.pod.terminating:
                effects.append(Expel(tracked.ref, BYPASSED, "bypass"))
        return effects

    def _right(self, uid: Uid, stamp: str, live: bool) -> Right | None:
        if self._created_with.get(uid) == stamp:
            return None
        if stamp == ADOPTED:
            return Right.ADOPTED
        match = _RELEASED.fullmatch(stamp)
        if match is None or uid in self._strays:
            return None  # a release takes the gate away and stamps the pod in one step
        if self._epoch is not None:
            epoch = int(match[1])
            if epoch > self._epoch:
                return None
            if epoch == self._epoch and self._ordered.get(uid) != stamp:
                return None
        # Of two that were there from the start nobody can tell which is the copy.
        first = self._stamps.get(stamp, uid)
        return None if live and first != uid else Right.RELEASED

    def _settle(self, tracked: Tracked, right: Right) -> None:
        uid = tracked.pod.uid
        self._rights[uid] = right
        stamp = tracked.pod.release
        if right is Right.RELEASED and self._stamps.setdefault(stamp, uid) == uid:
            self._stamp_of[uid] = stamp
        if self._strays.pop(uid, None) is not None:
            self._unjudged.pop(uid, None)
            self._adopting.drop(uid)
            self._expelling.drop(uid)

    def _judge(self, tracked: Tracked, now: Millis) -> list[Effect]:
        uid = tracked.pod.uid
        if self._was_there(tracked):
            self._expelling.drop(uid)
            if tracked.pod.release == ADOPTED:
                self._settle(tracked, Right.ADOPTED)
            else:
                self._adopting.add(uid, now)
            return []
        if uid in self._reported:
            return []
        self._reported.add(uid)
        if self._evicts and not tracked.pod.mirror:
            self._expelling.add(uid, now)
        return [_report(tracked), Tell(tracked.ref, Notice.REFUSED, BYPASSED)]

    def _was_there(self, tracked: Tracked) -> bool:
        """Tell whether a pod came when nobody was to hold it."""
        if self._mode is Mode.OBSERVE:
            return True
        assert self.since is not None
        until = self.since
        if self._enforced is not None:
            until = max(until, Millis(self._enforced + CHANGE_MS))
        return tracked.pod.since < until

    def _adopt(self, tracked: Tracked) -> Adopt:
        pod, leaf, pool = tracked.pod, tracked.leaf, tracked.pool
        assert leaf is not None, "asked before every pod had its place"
        labels = release_labels(leaf.tenant, pod.user, pool or "")
        if pool is None:
            del labels[LABEL_POOL]
        return Adopt(tracked.ref, labels)


def _report(tracked: Tracked) -> Bypassed:
    pod, leaf = tracked.pod, tracked.leaf
    assert leaf is not None, "asked before every pod had its place"
    return Bypassed(tracked.ref, leaf.tenant, pod.user, pod.node, pod.release, pod.since)
