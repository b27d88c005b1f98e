"""Jobs, JobSets and PodGroups become what the core knows of them: how many pods their gangs have.

Pure: no I/O, no memory between calls. A reader returns None for an object that does not concern us.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.json import Decoder

from app.core.asks.annotations import LARGEST_GANG, OF_THE_JOB
from app.core.asks.groups import COSCHEDULING, JOB, JOB_SET, NATIVE, Group
from app.core.events import GroupGone, GroupObserved, Source
from app.core.model import ANNOTATION_GANG, Millis
from app.core.resources import ManagedResources
from app.kube.kind import Kind
from app.wire import Change, Metadata, Page, PodSpec, Wire

JOBS = "/apis/batch/v1/jobs"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
POD_GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/podgroups"
NATIVE_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/podgroups"
"""As Kubernetes 1.36 has them, behind a feature gate; 1.35 had them in another shape."""


class PodTemplate(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class JobSpec(Wire, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    template: PodTemplate = PodTemplate()


class JobStatus(Wire, frozen=True):
    succeeded: int = 0


class Job(Wire, frozen=True):
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
    """`minMember`: of the coscheduling plugin. `schedulingPolicy`: of Kubernetes itself."""

    min_member: int = 1
    scheduling_policy: GroupPolicy = GroupPolicy()


class PodGroup(Wire, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodGroupSpec = PodGroupSpec()


class Groups:
    """Reads the objects that tell how many pods a gang has. Most Jobs are nobody's gang."""

    def __init__(self, managed: ManagedResources) -> None:
        self._managed = managed

    def job(self, job: Job, at: Millis) -> GroupObserved | None:
        """Return what a Job says, if its pods are held and ask to be a gang."""
        if not self._asks(job.spec.template):
            return None
        spec, succeeded = job.spec, job.status.succeeded
        return _observed(at, job.metadata, JOB, _size(spec), spec.completions, succeeded)

    def job_set(self, job_set: JobSet, at: Millis) -> GroupObserved | None:
        """Return what a JobSet says: of all its pods that are held and ask to be a gang."""
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
    """Return what a PodGroup of the coscheduling plugin says."""
    return _observed(at, group.metadata, COSCHEDULING, group.spec.min_member)


def read_native_group(group: PodGroup, at: Millis) -> GroupObserved:
    """Return what a PodGroup of Kubernetes itself says; without a gang its pods go each alone."""
    gang = group.spec.scheduling_policy.gang
    return _observed(at, group.metadata, NATIVE, gang.min_count if gang else 1)


def kinds(managed: ManagedResources) -> tuple[Kind[Job], Kind[JobSet], *tuple[Kind[PodGroup], ...]]:
    """Return the kinds of objects that tell how many pods a gang has."""
    read = Groups(managed)
    return (
        Kind(
            Source.JOBS,
            JOBS,
            Decoder(Page[Job]),
            Decoder(Change[Job]),
            Decoder(Job),
            key=_key,
            read=read.job,
            gone=_gone(JOB),
        ),
        Kind(
            Source.JOB_SETS,
            JOB_SETS,
            Decoder(Page[JobSet]),
            Decoder(Change[JobSet]),
            Decoder(JobSet),
            key=_key,
            read=read.job_set,
            gone=_gone(JOB_SET),
            optional=True,
        ),
        _pod_groups(Source.POD_GROUPS, POD_GROUPS, read_pod_group, COSCHEDULING),
        _pod_groups(Source.NATIVE_GROUPS, NATIVE_GROUPS, read_native_group, NATIVE),
    )


def _pod_groups(
    source: Source, path: str, read: Callable[[PodGroup, Millis], GroupObserved], prefix: str
) -> Kind[PodGroup]:
    page, change, item = Decoder(Page[PodGroup]), Decoder(Change[PodGroup]), Decoder(PodGroup)
    return Kind(source, path, page, change, item, _key, read, _gone(prefix), optional=True)


def _size(spec: JobSpec) -> int:
    """Return how many pods of a Job there are at once: both absent mean one."""
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
    return GroupObserved(at, Group(meta.namespace, prefix + meta.name, size, total, succeeded))


def _gone(prefix: str) -> Callable[[str, Millis], GroupGone]:
    def gone(key: str, at: Millis) -> GroupGone:
        namespace, name = key.split("/", 1)
        return GroupGone(at, namespace, prefix + name)

    return gone


def _key(meta: Metadata) -> str:
    return f"{meta.namespace}/{meta.name}"
