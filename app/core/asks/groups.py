"""Which gang a pod is one of, by its own words: the one place where the kinds of pod groups meet.

How many pods a Job, a JobSet or a PodGroup has the pod does not say; such objects become a `Group`.
The API server has stored the pod already: nothing here refuses, the gate warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.asks.annotations import OF_THE_JOB, named_gang, whole
from app.core.model import ANNOTATION_GANG, ANNOTATION_GANG_FAILURE

LABEL_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
LABEL_KUEUE = "kueue.x-k8s.io/pod-group-name"
ANNOTATION_KUEUE_COUNT = "kueue.x-k8s.io/pod-group-total-count"
LABEL_COSCHEDULING = "scheduling.x-k8s.io/pod-group"
OLD_COSCHEDULING = "pod-group.scheduling.sigs.k8s.io/name"
OLD_COSCHEDULING_LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"

JOB = "job/"
JOB_SET = "jobset/"
KUEUE = "kueue/"
COSCHEDULING = "coscheduling/"
NATIVE = "podgroup/"
"""What the names of gangs begin with that are not named by our own annotations."""

OBJECTS = {
    JOB: "Job",
    JOB_SET: "JobSet",
    COSCHEDULING: "PodGroup (scheduling.x-k8s.io)",
    NATIVE: "PodGroup (scheduling.k8s.io)",
}
"""Who tells how many pods such a gang has."""

ASKED = 0
"""A size that the pod does not say: the object that it names does."""


class Membership(NamedTuple):
    """The name of a gang within namespace and user ("": none), and its size, or ASKED."""

    name: str
    size: int


ALONE = Membership("", 1)


@dataclass(frozen=True, slots=True)
class Words:
    """What of a pod tells which gang it is one of.

    `job` is the Job that made it, `group` its `spec.schedulingGroup.podGroupName`; "" for none.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """What an object says of the gang of that name: how many pods it has.

    `total`: how many must succeed in all, one after another perhaps; None: it does not say.
    `succeeded`: how many of those have.
    """

    namespace: str
    name: str
    size: int
    total: int | None = None
    succeeded: int = 0


def membership(words: Words) -> Membership:
    """Return the gang that a pod is one of. The first that applies, from the top:

    our annotations; a Kueue pod group; a native PodGroup; a PodGroup of the coscheduling plugin.
    Without a legible size, where the pod is to say it, its pods go each alone.
    """
    asked = words.annotations.get(ANNOTATION_GANG, "").strip()
    if asked == OF_THE_JOB:
        job_set = words.labels.get(LABEL_JOB_SET, "")
        if words.job and job_set:
            return Membership(JOB_SET + job_set, ASKED)
        return Membership(JOB + words.job, ASKED) if words.job else ALONE
    if asked:
        return Membership(*named_gang(words.annotations))
    if name := words.labels.get(LABEL_KUEUE, ""):
        return _counted(KUEUE + name, words.annotations.get(ANNOTATION_KUEUE_COUNT, ""))
    if words.group:
        return Membership(NATIVE + words.group, ASKED)
    if name := words.labels.get(LABEL_COSCHEDULING, ""):
        return Membership(COSCHEDULING + name, ASKED)
    if name := _either(words, OLD_COSCHEDULING):
        return _counted(COSCHEDULING + name, _either(words, OLD_COSCHEDULING_LEAST))
    return ALONE


def starts_anew(annotations: Mapping[str, str]) -> bool:
    """Tell whether a gang of which one fails before all run is to begin again as a whole."""
    return annotations.get(ANNOTATION_GANG_FAILURE, "").strip() == "restart"


def source_of(name: str) -> str:
    """Return which object tells how many pods a gang has, for people; "": its pods do."""
    kind, slash, rest = name.partition("/")
    word = OBJECTS.get(kind + slash)
    return f"{word} {rest}" if word else ""


def doubtful(words: Words) -> Iterator[str]:
    """Return a warning for what a pod says of its gang and cannot be, the annotations' size aside.

    Nobody knows its mates here, so nothing is said of how many there are.
    """
    asked = words.annotations.get(ANNOTATION_GANG, "").strip()
    kueue, old = words.labels.get(LABEL_KUEUE, ""), _either(words, OLD_COSCHEDULING)
    newer = words.labels.get(LABEL_COSCHEDULING, "")
    if asked == OF_THE_JOB and not words.job:
        yield (
            f"Fairgate: {ANNOTATION_GANG}: {OF_THE_JOB} is for pods of a Job, and no Job made this "
            "pod, so it waits alone; name the gang and its size."
        )
    others = [each for each in (kueue, words.group, newer or old) if each]
    if asked and others:
        yield (
            f"Fairgate: this pod names the gang {asked[:40]!r} and the pod group "
            f"{others[0][:40]!r}; the annotation counts, so take one of them out."
        )
    if not asked and kueue and membership(words) == ALONE:
        yield _uncounted(kueue, ANNOTATION_KUEUE_COUNT, words.annotations)
    if not (asked or kueue or words.group or newer) and old and membership(words) == ALONE:
        found = {**words.annotations, **words.labels}
        yield _uncounted(old, OLD_COSCHEDULING_LEAST, found)
    failure = words.annotations.get(ANNOTATION_GANG_FAILURE)
    if failure is not None and failure.strip() not in ("keep", "restart"):
        yield (
            f"Fairgate: {ANNOTATION_GANG_FAILURE}: {failure[:40]!r} is neither keep nor restart, "
            "so keep holds; correct it."
        )


def _counted(name: str, size: str) -> Membership:
    count = whole(size)
    return Membership(name, count) if count > 1 else ALONE


def _either(words: Words, key: str) -> str:
    """Return what a pod says under a key that its releases wrote as label or as annotation."""
    return words.labels.get(key) or words.annotations.get(key, "")


def _uncounted(name: str, key: str, found: Mapping[str, str]) -> str:
    if found.get(key, "").strip() == "1":
        return f"Fairgate: the pod group {name[:40]!r} has one pod, so this pod waits alone."
    return (
        f"Fairgate: {key}: {found.get(key, '')[:40]!r} does not tell how many pods the group "
        f"{name[:40]!r} has, so this pod waits alone; create it again with their number."
    )
