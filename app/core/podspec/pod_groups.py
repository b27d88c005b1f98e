"""The gang of a pod, from its labels and annotations, for every supported kind of pod group.

A Job, JobSet or PodGroup states the size itself: see `GangDeclaration`. The API server has already
stored the pod, so this module never refuses. The webhook warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.core.model import Millis
from app.core.podspec.annotations import (
    LARGEST_GANG,
    OF_THE_JOB,
    gang_min_count,
    named_gang,
    parse_gang_size,
)
from app.core.safe_text import quote_text
from app.core.well_known import ANNOTATION_GANG, ANNOTATION_GANG_FAILURE

LABEL_JOB_SET = "jobset.sigs.k8s.io/jobset-name"
LABEL_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
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
COMPOSITE = "compositepodgroup/"
"""Prefixes of gang names that do not come from Fairgate's own annotations."""

OBJECTS = {
    JOB: "Job",
    JOB_SET: "JobSet",
    COSCHEDULING: "PodGroup (scheduling.x-k8s.io)",
    NATIVE: "PodGroup (scheduling.k8s.io)",
    COMPOSITE: "CompositePodGroup",
}
"""The object that states the number of pods, by prefix of the gang name."""

LONGEST_NAME = 253
"""Maximum length of an object name. A longer name cannot match an object."""

SIZE_FROM_GROUP = 0
"""Size of a gang if the named object states it, and not the pod."""


UNBOUNDED = LARGEST_GANG + 1
"""Size of a gang whose object states a minimum only."""


class Membership(NamedTuple):
    """The name of a gang within namespace and user ("": no gang), and its size or
    `SIZE_FROM_GROUP`.

    `min_count`: the number of pods that it needs to start, as the pod states it; 0: all of them.
    `replicated_job`: the replicated job of its JobSet.
    """

    name: str
    size: int
    min_count: int = 0
    replicated_job: str = ""


ALONE = Membership("", 1)


@dataclass(frozen=True, slots=True)
class GangMetadata:
    """The metadata of a pod that determines its gang.

    `job`: the Job that created it. `group`: `spec.schedulingGroup.podGroupName`. Both are empty
    strings if absent.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class GangDeclaration:
    """The size of a gang, as stated by the object of that name.

    `required_successes`: number of pods that must succeed in all, also one after another; None if
    the object does not state it. `succeeded_count`: number of pods that have succeeded.
    `min_count`: number of pods that the gang needs to start; 0 leaves that to the pods.
    `is_released_singly`: each pod is released alone.
    `replicated_jobs`: the replicated jobs of a JobSet that starts them one after another, each with
    its number of pods. Each is a gang of its own, which waits since `waiting_since`. `parent`: the
    CompositePodGroup above a PodGroup or CompositePodGroup. `min_count` of a CompositePodGroup is a
    number of child groups. `preemption_policy`: the preemption policy of a pod group, "" if it has
    none.
    """

    namespace: str
    name: str
    size: int
    required_successes: int | None = None
    succeeded_count: int = 0
    min_count: int = 0
    is_released_singly: bool = False
    replicated_jobs: tuple[tuple[str, int], ...] = ()
    waiting_since: Millis | None = None
    parent: str = ""
    preemption_policy: str = ""


def membership(words: GangMetadata) -> Membership:
    """Return the gang of a pod. The first match counts, in this order:

    Fairgate's annotations; a Kueue pod group; a native PodGroup; a PodGroup of the coscheduling
    plugin. A pod is released alone if it must state the size and does not state a valid one. The
    same is true if the name is longer than any object name.
    """
    found = _membership(words)
    longest = max(len(found.name) - len(COSCHEDULING), len(found.replicated_job))
    return found if longest <= LONGEST_NAME else ALONE


def _membership(words: GangMetadata) -> Membership:
    asked = words.annotations.get(ANNOTATION_GANG, "").strip()
    least = gang_min_count(words.annotations)
    if asked == OF_THE_JOB:
        job_set = words.labels.get(LABEL_JOB_SET, "")
        if words.job and job_set:
            part = words.labels.get(LABEL_REPLICATED_JOB, "")
            return Membership(JOB_SET + job_set, SIZE_FROM_GROUP, least, part)
        return Membership(JOB + words.job, SIZE_FROM_GROUP, least) if words.job else ALONE
    if asked:
        name, size = named_gang(words.annotations)
        return Membership(name, size, least if least < size else 0) if name else ALONE
    if name := words.labels.get(LABEL_KUEUE, ""):
        return _counted(KUEUE + name, words.annotations.get(ANNOTATION_KUEUE_COUNT, ""))
    if words.group:
        return Membership(NATIVE + words.group, SIZE_FROM_GROUP)
    if name := words.labels.get(LABEL_COSCHEDULING, ""):
        return Membership(COSCHEDULING + name, SIZE_FROM_GROUP)
    if name := _either(words, OLD_COSCHEDULING):
        return _counted(COSCHEDULING + name, _either(words, OLD_COSCHEDULING_LEAST))
    return ALONE


def restarts_gang(annotations: Mapping[str, str]) -> bool:
    """Return whether the whole gang restarts if a pod fails before all pods run."""
    return annotations.get(ANNOTATION_GANG_FAILURE, "").strip() == "restart"


def gang_object_of(name: str) -> str:
    """Return the kind and name of the object that states the gang size; "" if the pods state it."""
    kind, slash, rest = name.partition("/")
    word = OBJECTS.get(kind + slash)
    return f"{word} {rest}" if word else ""


def gang_warnings(words: GangMetadata) -> Iterator[str]:
    """Yield a warning for each invalid or contradictory statement about the gang of a pod.

    `annotations.misread` checks the size in Fairgate's annotation. The number of existing pods is
    unknown here.
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
            f"Fairgate: this pod names the gang {quote_text(asked)} and the pod group "
            f"{quote_text(others[0])}; the annotation is used; remove one of the two."
        )
    if not asked and kueue and membership(words) == ALONE:
        yield _uncounted(kueue, ANNOTATION_KUEUE_COUNT, words.annotations)
    if not (asked or kueue or words.group or newer) and old and membership(words) == ALONE:
        found = {**words.annotations, **words.labels}
        yield _uncounted(old, OLD_COSCHEDULING_LEAST, found)
    failure = words.annotations.get(ANNOTATION_GANG_FAILURE)
    if failure is not None and failure.strip() not in ("keep", "restart"):
        yield (
            f"Fairgate: {ANNOTATION_GANG_FAILURE}: {quote_text(failure)} is neither keep nor "
            "restart, so keep holds; correct it."
        )


def _counted(name: str, size: str) -> Membership:
    count = parse_gang_size(size)
    return Membership(name, count) if count > 1 else ALONE


def _either(words: GangMetadata, key: str) -> str:
    """Return the value that releases of the plugin wrote as a label or as an annotation."""
    return words.labels.get(key) or words.annotations.get(key, "")


def _uncounted(name: str, key: str, found: Mapping[str, str]) -> str:
    if found.get(key, "").strip() == "1":
        return f"Fairgate: the pod group {quote_text(name)} has one pod, so this pod waits alone."
    return (
        f"Fairgate: {key}: {quote_text(found.get(key, ''))} is not the number of pods of the group "
        f"{quote_text(name)}, so this pod waits alone; create it again with that number."
    )
