"""Checks of running pods, pod templates and operators. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.commands.doctor.findings import Check, Finding, count, names, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot
from app.commands.doctor.template_paths import CustomKind
from app.commands.doctor.workloads import Workload

READ = ("pods", "daemonsets", "deployments", "statefulsets", "jobs", "cronjobs")


@dataclass(frozen=True, slots=True)
class RefusedWorkload:
    """The refused workloads of one namespace. `device_workloads` are its workloads with devices.

    `tenant` is the Tenant that names the namespace, "" without one.
    """

    namespace: str
    tenant: str
    agents: tuple[Workload, ...]
    others: tuple[Workload, ...]
    device_workloads: tuple[Workload, ...]

    @property
    def should_be_exempt(self) -> bool:
        """Whether the namespace is for agents of nodes: no tenant, no workloads with devices."""
        return bool(self.agents) and not self.tenant and not self.device_workloads

    @property
    def namespace_and_tenant(self) -> str:
        """The namespace, with its tenant."""
        return f"{self.namespace} of tenant {self.tenant}" if self.tenant else self.namespace


def refused_workloads(seen: ClusterSnapshot) -> list[RefusedWorkload]:
    """Return the namespaces with workloads that Fairgate would refuse in mode Enforce."""
    spaces: dict[str, list[Workload]] = {}
    for each in seen.workloads:
        if each.namespace not in seen.assumptions.exempt:
            spaces.setdefault(each.namespace, []).append(each)
    found = []
    for space, workloads in sorted(spaces.items()):
        bad = [each for each in workloads if each.refusals]
        if bad:
            found.append(
                RefusedWorkload(
                    space,
                    seen.tenants.get(space, ""),
                    tuple(each for each in bad if each.is_agent),
                    tuple(each for each in bad if not each.is_agent),
                    tuple(each for each in workloads if each.requests_devices),
                )
            )
    return found


def check_pods(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check which running workloads Fairgate would refuse in mode Enforce."""
    found = refused_workloads(seen)
    for space in found:
        if space.should_be_exempt:
            yield _exempt(space)
        else:
            yield from _agents_of_users(space)
            yield from _messages(space.namespace, space.others)
    if not found and seen.is_known(*READ):
        yield ok(
            Check.PODS,
            f"Fairgate would admit all pods of {count(len(seen.workloads), 'running workload')}.",
        )
    for space_name in seen.assumptions.exempt:
        if space_name in seen.tenants:
            yield warning(
                Check.NAMESPACES,
                f"namespace {space_name} is exempt and belongs to tenant "
                f"{seen.tenants[space_name]}, so Fairgate does not queue its pods.",
                "Remove it from the exempt namespaces, or from the Tenant.",
                [space_name],
            )
        asking = [
            e.address for e in seen.workloads if e.requests_devices and e.namespace == space_name
        ]
        if asking:
            yield warning(
                Check.NAMESPACES,
                f"namespace {space_name} is exempt, and {names(asking)} requests devices there, "
                "which Fairgate does not queue.",
                "Move it to a namespace that is not exempt, unless it belongs to the cluster.",
                asking,
            )


def _exempt(space: RefusedWorkload) -> Finding:
    every = [*space.agents, *space.others]
    return problem(
        Check.NAMESPACES,
        f"namespace {space.namespace} runs node agents that Fairgate would refuse: "
        f"{names(describe_workloads(every))}.",
        f"Add {space.namespace} to extraExemptNamespaces.",
        [each.address for each in every],
    )


def _agents_of_users(space: RefusedWorkload) -> Iterator[Finding]:
    if space.agents:
        beside = (
            f" beside pods with devices ({names(each.title for each in space.device_workloads)})"
        )
        agents = names(describe_workloads(space.agents))
        yield problem(
            Check.NAMESPACES,
            f"namespace {space.namespace_and_tenant} runs node agents that Fairgate would refuse "
            f"({agents}){beside if space.device_workloads else ''}. Fairgate would "
            "not queue the pods of an exempt namespace.",
            "Move the agents to a namespace of their own, and exempt that one.",
            [each.address for each in space.agents],
        )


def _messages(namespace: str, workloads: Iterable[Workload]) -> Iterator[Finding]:
    by_message: dict[str, list[Workload]] = {}
    for each in workloads:
        for message in each.refusals:
            by_message.setdefault(message, []).append(each)
    for message, group in sorted(by_message.items()):
        yield problem(
            Check.PODS,
            f"namespace {namespace}: {names(each.title for each in group)} would be refused.",
            message,
            [each.address for each in group],
        )


def describe_workloads(workloads: Iterable[Workload]) -> list[str]:
    """Return each workload with its purpose and the short forms of its refusals."""
    return [
        f"{each.title} ({each.purpose}, {reasons(each)})"
        if each.purpose
        else f"{each.title} ({reasons(each)})"
        for each in workloads
    ]


REASONS = (
    ("privileged container", "privileged container"),
    ("hostPath", "hostPath volume with devices"),
    ("tolerate", "toleration of a GPU taint"),
    ("podAntiAffinity", "anti-affinity to other namespaces"),
    ("would reach devices", "variable that selects devices"),
    ("PriorityClass", "PriorityClass"),
)
"""Part of a refusal, and its short form."""


def reasons(workload: Workload) -> str:
    """Return the refusals of a workload in short form."""
    short = {
        next((text for part, text in REASONS if part in message), "refused")
        for message in workload.refusals
    }
    return ", ".join(sorted(short))


def check_operators(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check that Fairgate knows the pod templates of all operators.

    Their accounts need no entry: those with rights in all namespaces may name the owner of a pod.
    """
    for kind in unlisted_kinds(seen):
        yield warning(
            Check.OPERATORS,
            f"{kind.name} is installed and not listed, so all its pods count as one user.",
            f"Add {kind.kind} to extraPodTemplates.",
            [kind.name],
        )
    if not unlisted_kinds(seen) and seen.is_known("customresourcedefinitions"):
        operators = [each.name for each in seen.kinds if each.paths]
        found = f": {names(operators, 20)}" if operators else ""
        yield ok(Check.OPERATORS, f"all installed kinds with pod templates are listed{found}.")


def unlisted_kinds(seen: ClusterSnapshot) -> list[CustomKind]:
    """Return the installed kinds with pod templates that Fairgate does not know."""
    listed = {(each.group, each.resource) for each in seen.assumptions.templates}
    return [
        each
        for each in sorted(seen.kinds, key=lambda kind: kind.name)
        if each.paths and each.is_namespaced and (each.group, each.resource) not in listed
    ]
