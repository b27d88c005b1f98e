"""Converts Jobs, JobSets and PodGroups to gang sizes. Pure: no I/O, no state between calls.

A reader returns None for an irrelevant object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.core.events import GroupGone, GroupObserved, WatchedSource
from app.core.model import Millis
from app.core.podspec.annotations import LARGEST_GANG, OF_THE_JOB
from app.core.podspec.pod_groups import (
    COMPOSITE,
    COSCHEDULING,
    JOB,
    JOB_SET,
    LONGEST_NAME,
    NATIVE,
    UNBOUNDED,
    GangDeclaration,
)
from app.core.quantities import ManagedResources
from app.core.well_known import ANNOTATION_GANG
from app.k8s_types.deep_json import Decoder
from app.k8s_types.objects import ListPage, Metadata, PodSpec, WatchEvent
from app.k8s_types.scheduling import CountedObject, KubeStruct
from app.kube.convert import created
from app.kube.informer.watched_kind import WatchedKind

JOBS = "/apis/batch/v1/jobs"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
IN_ORDER = "InOrder"
NATIVE_VERSIONS = ("v1beta1", "v1alpha3", "v1alpha2")
NATIVE_GROUPS = tuple(f"/apis/scheduling.k8s.io/{each}/podgroups" for each in NATIVE_VERSIONS)
"""The last one is of Kubernetes 1.36. Kubernetes 1.35 has another format."""
COMPOSITE_GROUPS = "/apis/scheduling.k8s.io/v1alpha3/compositepodgroups"


class PodTemplate(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class JobSpec(KubeStruct, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(KubeStruct, frozen=True):
    succeeded: int = 0


class JobObject(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplate(KubeStruct, frozen=True):
    spec: JobSpec = JobSpec()


class ReplicatedJob(KubeStruct, frozen=True):
    name: str = ""
    replicas: int = 1
    template: JobTemplate = JobTemplate()
    depends_on: list[CountedObject] | None = None


class StartupPolicy(KubeStruct, frozen=True):
    startup_policy_order: str = ""


class JobSetSpec(KubeStruct, frozen=True):
    replicated_jobs: list[ReplicatedJob] | None = None
    startup_policy: StartupPolicy = StartupPolicy()

    @property
    def is_sequenced(self) -> bool:
        """Return whether some of its Jobs are created only when others are ready or complete."""
        depends = any(each.depends_on for each in self.replicated_jobs or ())
        return depends or self.startup_policy.startup_policy_order == IN_ORDER


class JobSet(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSetSpec = JobSetSpec()


class GangPolicy(KubeStruct, frozen=True):
    min_count: int = 1


class GroupPolicy(KubeStruct, frozen=True):
    gang: GangPolicy | None = None


class GroupSpec(KubeStruct, frozen=True):
    """The fields that PodGroups and CompositePodGroups share."""

    parent_composite_pod_group_name: str | None = None
    preemption_policy: str = ""


class PodGroupSpec(GroupSpec, frozen=True):
    """`minMember` belongs to the coscheduling plugin, `schedulingPolicy` to Kubernetes itself."""

    min_member: int = 1
    scheduling_policy: GroupPolicy = GroupPolicy()


class PodGroup(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodGroupSpec = PodGroupSpec()


class CompositeGangPolicy(KubeStruct, frozen=True):
    min_group_count: int = 1


class CompositePolicy(KubeStruct, frozen=True):
    gang: CompositeGangPolicy = CompositeGangPolicy()


class CompositeGroupSpec(GroupSpec, frozen=True):
    scheduling_policy: CompositePolicy = CompositePolicy()


class CompositeGroup(KubeStruct, frozen=True):
    metadata: Metadata = Metadata()
    spec: CompositeGroupSpec = CompositeGroupSpec()


class Groups:
    """Reads the objects that define gang sizes. Most Jobs are not gangs."""

    def __init__(self, managed: ManagedResources) -> None:
        self._managed = managed

    def read_job(self, job: JobObject, at: Millis) -> GroupObserved | None:
        """Return the gang of a Job, or None if its pods are not held or do not request a gang."""
        if not self._requests_gang(job.spec.template):
            return None
        spec, succeeded = job.spec, job.status.succeeded
        return _group_event(at, job.metadata, JOB, _size(spec), spec.completions, succeeded)

    def read_job_set(self, job_set: JobSet, at: Millis) -> GroupObserved | None:
        """Return the gang of a JobSet: all its held pods that request a gang. None without any.

        If it starts its replicated jobs one after another, each replicated job is a gang.
        """
        parts = [
            (each.name, each.replicas * _size(each.template.spec))
            for each in job_set.spec.replicated_jobs or ()
            if self._requests_gang(each.template.spec.template)
        ]
        size, meta = sum(size for _, size in parts), job_set.metadata
        if not size:
            return None
        observed = _group_event(at, meta, JOB_SET, size)
        if not job_set.spec.is_sequenced:
            return observed
        sizes = tuple((name, _bounded(size)) for name, size in parts)
        return replace(
            observed,
            group=replace(observed.group, replicated_jobs=sizes, waiting_since=created(meta)),
        )

    def _requests_gang(self, template: PodTemplate) -> bool:
        asked = (template.metadata.annotations or {}).get(ANNOTATION_GANG, "").strip()
        if asked != OF_THE_JOB:
            return False
        demand = template.spec.demand()
        return bool(template.spec.resource_claims) or self._managed.has_managed(demand)


def read_pod_group(group: PodGroup, at: Millis) -> GroupObserved:
    """Return the gang of a PodGroup of the coscheduling plugin."""
    return _minimum_event(at, group.metadata, COSCHEDULING, group.spec.min_member)


def read_native_group(group: PodGroup, at: Millis) -> GroupObserved:
    """Return the gang of a Kubernetes PodGroup. Its pods start one by one without a gang policy.

    kube-scheduler counts a group without a gang policy as complete with one pod.
    """
    gang, meta = group.spec.scheduling_policy.gang, group.metadata
    parent = _parent(group.spec.parent_composite_pod_group_name)
    preemption = group.spec.preemption_policy
    if gang is None and not parent:
        return GroupObserved(
            at, GangDeclaration(meta.namespace, NATIVE + meta.name, 1, is_released_singly=True)
        )
    return _minimum_event(at, meta, NATIVE, gang.min_count if gang else 1, parent, preemption)


def read_composite_group(group: CompositeGroup, at: Millis) -> GroupObserved:
    """Return the number of child groups that a CompositePodGroup needs. `basic`: one."""
    spec = group.spec
    least = spec.scheduling_policy.gang.min_group_count
    parent = _parent(spec.parent_composite_pod_group_name)
    return _minimum_event(at, group.metadata, COMPOSITE, least, parent, spec.preemption_policy)


def _parent(written: str | None) -> str:
    return written if written and len(written) <= LONGEST_NAME else ""


def gang_size_kinds(
    managed: ManagedResources,
) -> tuple[
    WatchedKind[JobObject],
    WatchedKind[JobSet],
    WatchedKind[CompositeGroup],
    *tuple[WatchedKind[PodGroup], ...],
]:
    """Return the watched kinds that define gang sizes."""
    read = Groups(managed)
    return (
        WatchedKind(
            WatchedSource.JOBS,
            JOBS,
            Decoder(ListPage[JobObject]),
            Decoder(WatchEvent[JobObject]),
            Decoder(JobObject),
            key=_key,
            read=read.read_job,
            deletion_event=_deletion_event(JOB),
        ),
        WatchedKind(
            WatchedSource.JOB_SETS,
            JOB_SETS,
            Decoder(ListPage[JobSet]),
            Decoder(WatchEvent[JobSet]),
            Decoder(JobSet),
            key=_key,
            read=read.read_job_set,
            deletion_event=_deletion_event(JOB_SET),
            optional=True,
        ),
        WatchedKind(
            WatchedSource.COMPOSITE_GROUPS,
            COMPOSITE_GROUPS,
            Decoder(ListPage[CompositeGroup]),
            Decoder(WatchEvent[CompositeGroup]),
            Decoder(CompositeGroup),
            key=_key,
            read=read_composite_group,
            deletion_event=_deletion_event(COMPOSITE),
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
    page, change, item = (
        Decoder(ListPage[PodGroup]),
        Decoder(WatchEvent[PodGroup]),
        Decoder(PodGroup),
    )
    first, *others = paths
    return WatchedKind(
        source,
        first,
        page,
        change,
        item,
        _key,
        read,
        _deletion_event(prefix),
        optional=True,
        other_paths=tuple(others),
    )


def _size(spec: JobSpec) -> int:
    """Return how many pods of a Job exist at the same time. The default is one."""
    most = spec.parallelism if spec.parallelism is not None else 1
    return most if spec.completions is None else min(most, spec.completions)


def _group_event(
    at: Millis,
    meta: Metadata,
    prefix: str,
    size: int,
    total: int | None = None,
    succeeded: int = 0,
) -> GroupObserved:
    return GroupObserved(
        at, GangDeclaration(meta.namespace, prefix + meta.name, _bounded(size), total, succeeded)
    )


def _bounded(size: int) -> int:
    return size if 1 <= size <= LARGEST_GANG else 1


def _minimum_event(
    at: Millis,
    meta: Metadata,
    prefix: str,
    least: int,
    parent: str = "",
    preemption: str = "",
) -> GroupObserved:
    """Return a gang of any number of pods that needs `least` of them to start."""
    declared = GangDeclaration(
        meta.namespace,
        prefix + meta.name,
        UNBOUNDED,
        min_count=_bounded(least),
        parent=parent,
        preemption_policy=preemption,
    )
    return GroupObserved(at, declared)


def _deletion_event(prefix: str) -> Callable[[str, Millis], GroupGone]:
    def gone(key: str, at: Millis) -> GroupGone:
        namespace, name = key.split("/", 1)
        return GroupGone(at, namespace, prefix + name)

    return gone


def _key(meta: Metadata) -> str:
    return f"{meta.namespace}/{meta.name}"
