"""Converts Jobs, JobSets and PodGroups to gang sizes. Pure: no I/O, no state between calls.

A reader returns None for an irrelevant object.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.json import Decoder

from app.core.events import GroupGone, GroupObserved, WatchedSource
from app.core.model import Millis
from app.core.podspec.annotations import LARGEST_GANG, OF_THE_JOB
from app.core.podspec.pod_groups import (
    COSCHEDULING,
    JOB,
    JOB_SET,
    NATIVE,
    UNBOUNDED,
    GangDeclaration,
)
from app.core.quantities import ManagedResources
from app.core.well_known import ANNOTATION_GANG
from app.k8s_types.objects import Change, ListPage, Metadata, PodSpec
from app.k8s_types.scheduling import Wire
from app.kube.informer.watched_kind import WatchedKind

JOBS = "/apis/batch/v1/jobs"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
NATIVE_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
NATIVE_GROUPS = tuple(f"/apis/scheduling.k8s.io/{each}/podgroups" for each in NATIVE_VERSIONS)
"""The last one is of Kubernetes 1.36. Kubernetes 1.35 has another format."""


class PodTemplate(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class JobSpec(Wire, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(Wire, frozen=True):
    succeeded: int = 0


class JobObject(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplate(Wire, frozen=True):
    spec: JobSpec = JobSpec()


class ReplicatedJob(Wire, frozen=True):
    replicas: int = 1
    template: JobTemplate = JobTemplate()


class JobSetSpec(Wire, frozen=True):
    replicated_jobs: list[ReplicatedJob] | None = None


class JobSet(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSetSpec = JobSetSpec()


class GangPolicy(Wire, frozen=True):
    min_count: int = 1


class GroupPolicy(Wire, frozen=True):
    gang: GangPolicy | None = None


class PodGroupSpec(Wire, frozen=True):
    """`minMember` belongs to the coscheduling plugin, `schedulingPolicy` to Kubernetes itself."""

    min_member: int = 1
    scheduling_policy: GroupPolicy = GroupPolicy()


class PodGroup(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodGroupSpec = PodGroupSpec()


class Groups:
    """Reads the objects that define gang sizes. Most Jobs are not gangs."""

    def __init__(self, managed: ManagedResources) -> None:
        self._managed = managed

    def job(self, job: JobObject, at: Millis) -> GroupObserved | None:
        """Return the gang of a Job, or None if its pods are not held or do not request a gang."""
        if not self._asks(job.spec.template):
            return None
        spec, succeeded = job.spec, job.status.succeeded
        return _observed(at, job.metadata, JOB, _size(spec), spec.completions, succeeded)

    def job_set(self, job_set: JobSet, at: Millis) -> GroupObserved | None:
        """Return the gang of a JobSet: all its held pods that request a gang. None without any."""
        size = sum(
            each.replicas * _size(each.template.spec)
            for each in job_set.spec.replicated_jobs or ()
            if self._asks(each.template.spec.template)
        )
        return _observed(at, job_set.metadata, JOB_SET, size) if size else None

    def _asks(self, template: PodTemplate) -> bool:
        asked = (template.metadata.annotations or {}).get(ANNOTATION_GANG, "").strip()
        if asked != OF_THE_JOB:
            return False
        demand = template.spec.demand()
        return bool(template.spec.resource_claims) or self._managed.asked(demand)


def read_pod_group(group: PodGroup, at: Millis) -> GroupObserved:
    """Return the gang of a PodGroup of the coscheduling plugin."""
    return _with_minimum(at, group.metadata, COSCHEDULING, group.spec.min_member)


def read_native_group(group: PodGroup, at: Millis) -> GroupObserved:
    """Return the gang of a Kubernetes PodGroup. Its pods start one by one without a gang policy."""
    gang, meta = group.spec.scheduling_policy.gang, group.metadata
    if gang is None:
        return GroupObserved(at, GangDeclaration(meta.namespace, NATIVE + meta.name, 1, apart=True))
    return _with_minimum(at, meta, NATIVE, gang.min_count)


def kinds(
    managed: ManagedResources,
) -> tuple[WatchedKind[JobObject], WatchedKind[JobSet], *tuple[WatchedKind[PodGroup], ...]]:
    """Return the watched kinds that define gang sizes."""
    read = Groups(managed)
    return (
        WatchedKind(
            WatchedSource.JOBS,
            JOBS,
            Decoder(ListPage[JobObject]),
            Decoder(Change[JobObject]),
            Decoder(JobObject),
            key=_key,
            read=read.job,
            gone=_gone(JOB),
        ),
        WatchedKind(
            WatchedSource.JOB_SETS,
            JOB_SETS,
            Decoder(ListPage[JobSet]),
            Decoder(Change[JobSet]),
            Decoder(JobSet),
            key=_key,
            read=read.job_set,
            gone=_gone(JOB_SET),
            optional=True,
        ),
        _pod_groups(WatchedSource.POD_GROUPS, (POD_GROUPS,), read_pod_group, COSCHEDULING),
        _pod_groups(WatchedSource.NATIVE_GROUPS, NATIVE_GROUPS, read_native_group, NATIVE),
    )


def _pod_groups(
    source: WatchedSource,
    paths: tuple[str, ...],
    read: Callable[[PodGroup, Millis], GroupObserved],
    prefix: str,
) -> WatchedKind[PodGroup]:
    page, change, item = Decoder(ListPage[PodGroup]), Decoder(Change[PodGroup]), Decoder(PodGroup)
    first, *others = paths
    return WatchedKind(
        source,
        first,
        page,
        change,
        item,
        _key,
        read,
        _gone(prefix),
        optional=True,
        other_paths=tuple(others),
    )


def _size(spec: JobSpec) -> int:
    """Return how many pods of a Job exist at the same time. The default is one."""
    most = spec.parallelism if spec.parallelism is not None else 1
    return most if spec.completions is None else min(most, spec.completions)


def _observed(
    at: Millis,
    meta: Metadata,
    prefix: str,
    size: int,
    total: int | None = None,
    succeeded: int = 0,
) -> GroupObserved:
    size = size if 1 <= size <= LARGEST_GANG else 1
    return GroupObserved(
        at, GangDeclaration(meta.namespace, prefix + meta.name, size, total, succeeded)
    )


def _with_minimum(at: Millis, meta: Metadata, prefix: str, least: int) -> GroupObserved:
    """Return a gang of any number of pods that needs `least` of them to start."""
    least = least if 1 <= least <= LARGEST_GANG else 1
    return GroupObserved(
        at, GangDeclaration(meta.namespace, prefix + meta.name, UNBOUNDED, least=least)
    )


def _gone(prefix: str) -> Callable[[str, Millis], GroupGone]:
    def gone(key: str, at: Millis) -> GroupGone:
        namespace, name = key.split("/", 1)
        return GroupGone(at, namespace, prefix + name)

    return gone


def _key(meta: Metadata) -> str:
    return f"{meta.namespace}/{meta.name}"
