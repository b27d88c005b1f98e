"""One managed pod and its place; and gangs, whose pods have a place together. Values that change.

What is held, and complete, waits as one workload: a pod alone, or the held pods of a gang.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from app.core.asks.shape import Shape
from app.core.asks.terms import Terms
from app.core.effects import Charge, Intend, PodRef
from app.core.fair.backlog import Turn
from app.core.fair.branch import Leaf
from app.core.fair.order import NEVER, Served
from app.core.fair.runs import Run
from app.core.model import (
    Kind,
    Millis,
    NodeName,
    Pod,
    PoolName,
    TenantName,
    Uid,
    UserName,
    Wait,
)
from app.core.places.placement import Stay
from app.core.places.reach import terms_of
from app.core.pods.life import Life

_STAMP = re.compile(
    r"0@(?P<fence>\d{1,12})(?:\.\d{1,15}){0,2}|(?P<epoch>\d{1,12})\.(?P<sequence>\d{1,15})",
    re.ASCII,
)

FENCE = "0@"
"""What the release annotation of a pod begins with whose release was begun, and fenced off."""

Queueing = tuple[TenantName, UserName]
"""The queue in which the store shows a pod."""

GangKey = tuple[str, UserName, str]
"""Namespace, user and name: nobody can join, swell or block a gang of somebody else's."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One managed pod and its place. `pool` and `stay` are set while it uses capacity.

    `written` is what the store holds of it, `noted` what the audit chain last told of it,
    `released` when its use began, `entered` since when it counts as used here, `run` what is kept
    of that, `told` the reason of its waiting that its owner knows, `aimed` the node that it was
    released for, `ordered` what it will say about nodes once its release is seen, `evicted` why it
    is being evicted, `spared` for whose sake it may not be, and until when.
    """

    pod: Pod
    life: Life
    stamp: Served
    turn: Turn
    leaf: Leaf | None = None
    gang: Gang | None = None
    shape: Shape | None = None
    pool: PoolName | None = None
    stay: Stay | None = None
    released: Millis | None = None
    entered: Millis | None = None
    run: Run | None = None
    wait: Wait | None = None
    told: Wait | None = None
    aimed: NodeName | None = None
    refusals: int = 0
    rests: bool = False
    evicted: str = ""
    spared: tuple[frozenset[TenantName], Millis] | None = None
    intent: Intend | None = None
    written: Queueing | Charge | None = None
    ordered: Terms | None = None
    noted: str = ""

    @property
    def ref(self) -> PodRef:
        """Return enough of the pod to address it."""
        return PodRef(self.pod.uid, self.pod.namespace, self.pod.name)

    @property
    def members(self) -> tuple[Tracked, ...]:
        """Return itself: a workload of one pod."""
        return (self,)

    @property
    def starting(self) -> tuple[Tracked, ...]:
        """Return who is released when its turn comes: itself."""
        return (self,)

    @property
    def begun(self) -> bool:
        """Tell whether its release was begun before, by this leader or an earlier one, in vain.

        The fence tells, which nobody but Fairgate can write, and no new pod carries. A refusal
        does not: whoever may edit a pod can bring one about, as often as they like.
        """
        return self.pod.release.startswith(FENCE)

    @property
    def uses(self) -> bool:
        """Tell whether it may run, and so counts as used."""
        return self.life is not Life.HELD

    @property
    def terms(self) -> Terms:
        """Return what it says about nodes, or will once its release is seen."""
        return self.ordered if self.ordered is not None else terms_of(self.pod)

    def heed(self, pod: Pod) -> None:
        """It is seen so: if it says other things of nodes, they hold, not what was ordered."""
        terms = terms_of(pod)
        if (terms, pod.only) != (terms_of(self.pod), self.pod.only):
            self.ordered = None
            if self.stay is not None:
                self.stay.terms, self.stay.only = terms, pod.only

    @property
    def node(self) -> NodeName | None:
        """Return where it runs, or is expected to."""
        return self.stay.node if self.stay else None


@dataclass(slots=True, eq=False)
class Gang:
    """Pods of one user that are useless without each other, and how many there must be.

    The size is read once; 0: the object that tells it is not known. `asks`: there is one, which
    may also tell how many must succeed in all (`total`, read once too), and how many have; `done`
    are those that have, as far as they are still seen, each with the owners of all that were there
    then. `turn`, `leaf` and
    `shape` are set while held pods of it wait as one, those that are `starting`. `half`: these are
    the rest of it, the others were released.

    `ending` are the pods on their way out, `past` those past the gate, `runs` those that run;
    `started`: all ran at once. `found`: some ran when it was first heard of. Of `lacks`,
    `lost` and `leaving` tells `muster`.
    """

    key: GangKey
    size: int
    asks: bool = False
    total: int | None = None
    succeeded: int = 0
    pods: dict[Uid, Tracked] = field(default_factory=dict)
    ending: set[Uid] = field(default_factory=set)
    past: set[Uid] = field(default_factory=set)
    runs: set[Uid] = field(default_factory=set)
    done: dict[Uid, frozenset[str]] = field(default_factory=dict)
    started: bool = False
    found: bool = False
    turn: Turn | None = None
    leaf: Leaf | None = None
    shape: Shape | None = None
    starting: tuple[Tracked, ...] = ()
    half: bool = False
    lacks: Millis | None = None
    lost: bool = False
    leaving: str = ""

    @property
    def need(self) -> int:
        """Return how many of its pods there must be now: those that succeeded need not be."""
        if self.total is not None:
            return min(self.size, max(0, self.total - self.succeeded))
        if self.asks:
            return max(0, self.size - len(self.done))
        if not self.done:
            return self.size
        # The name may have been used before, and nothing but the pods tells: those of an older run
        # had other owners, or there are as many of them as a gang has.
        makers = {member.pod.owner for member in self.pods.values()}
        ours = sum(not makers.isdisjoint(owners) for owners in self.done.values())
        return self.size - ours % max(1, self.size)

    @property
    def there(self) -> int:
        """Return how many of its pods wait or run, those on their way out aside."""
        return len(self.pods) - len(self.ending)

    @property
    def name(self) -> str:
        """Return what its pods call it."""
        return self.key[2]

    @property
    def members(self) -> tuple[Tracked, ...]:
        """Return its pods, by uid."""
        return tuple(self.pods[uid] for uid in sorted(self.pods))


Workload = Tracked | Gang


def kind_of(leaf: Leaf, pod: Pod) -> Kind:
    """Return the kind of a user's pod."""
    return *leaf.account, frozenset(pod.demand.items())


def stamp_of(release: str) -> Served:
    """Return (epoch, sequence) of a release annotation; `0@7`, `0@7.3` are (7, 0).

    Anything else is NEVER.

    Whoever may edit the pod may have written it, so nothing is believed that we would not write.
    """
    match = _STAMP.fullmatch(release)
    if match is None:
        return NEVER
    return int(match["fence"] or match["epoch"]), int(match["sequence"] or 0)


def same_use(tracked: Tracked, pod: Pod) -> bool:
    """Tell whether a pod that runs still uses the same, as the same user, at the same place."""
    known = tracked.pod
    if (known.namespace, known.user, known.gang) != (pod.namespace, pod.user, pod.gang):
        return False
    if (known.demand, known.asks, known.node) != (pod.demand, pod.asks, pod.node):
        return False
    return pod.node is not None or pod.pool in (None, tracked.pool)
