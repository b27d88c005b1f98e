"""One reading of a cluster for the checks: bounded lists, reduced to the needed facts.

A list that the caller may not read becomes an entry of `unread`, and the checks that need it report
that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from app.commands.doctor import assumptions
from app.commands.doctor.accounts import Accounts
from app.commands.doctor.assumptions import Assumptions
from app.commands.doctor.pod_rules import PodJudge
from app.commands.doctor.template_paths import CustomKind, custom_kind
from app.commands.doctor.workloads import Workload, Workloads
from app.core.admission.pod_templates import TemplateKind
from app.core.admission.priority_class_twins import PriorityClass
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import Millis
from app.k8s_types import objects
from app.kube.priority_class_twins import read_priority
from app.ports.cluster_survey import ClusterSurvey, Object

MOST = 50_000
"""Largest number of objects of one kind that is read."""

PAGE = 500
LARGE_PAGE = 20
"""Page size of definitions. A definition may have a megabyte."""

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
GROUP = "/apis/fairgate.io/v1alpha1"
FORBIDDEN = (401, 403)

WORKLOADS = (
    ("/apis/apps/v1/deployments", TemplateKind("apps", "deployments", "spec.template")),
    ("/apis/apps/v1/statefulsets", TemplateKind("apps", "statefulsets", "spec.template")),
    ("/apis/apps/v1/daemonsets", TemplateKind("apps", "daemonsets", "spec.template")),
    ("/apis/batch/v1/jobs", TemplateKind("batch", "jobs", "spec.template")),
    (
        "/apis/batch/v1/cronjobs",
        TemplateKind("batch", "cronjobs", "spec.jobTemplate.spec.template"),
    ),
)
"""The built-in kinds with templates. Jobs come before pods, which name them."""

KINDS = {
    "deployments": "Deployment",
    "statefulsets": "StatefulSet",
    "daemonsets": "DaemonSet",
    "jobs": "Job",
    "cronjobs": "CronJob",
}


class Unread(NamedTuple):
    """A right that the caller lacks: verb, resource and API path."""

    verb: str
    resource: str
    path: str


@dataclass(slots=True)
class Installation:
    """The objects of an installed Fairgate, None or empty if absent."""

    deployments: dict[str, Object] = field(default_factory=dict)
    enforcement: Object | None = None
    """The ConfigMap with the mode of the chart."""
    mutating: Object | None = None
    validating: Object | None = None
    bindings: list[Object] = field(default_factory=list)
    """Bindings of admission policies, also those of other programs."""
    endpoints: list[Object] = field(default_factory=list)
    lease: Object | None = None
    is_lease_renewed: bool = False
    """Whether a Lease that seemed to be expired was renewed while it was watched."""
    policy: Object | None = None
    tenants: list[Object] = field(default_factory=list)
    pools: list[Object] = field(default_factory=list)
    canary: Object | None = None
    pods: list[Object] = field(default_factory=list)
    """The pods in Fairgate's namespace."""
    events: list[Object] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        """Whether Fairgate is installed."""
        return bool(self.deployments or self.enforcement or self.mutating)


@dataclass(slots=True)
class ClusterSnapshot:
    """The facts of one cluster."""

    assumptions: Assumptions = field(default_factory=Assumptions)
    version: str = ""
    admission: frozenset[str] = frozenset()
    """The resources of the admission API that the API server serves."""
    workloads: list[Workload] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    """Extended resources of the nodes, with their sum."""
    nodes: int = 0
    classes: dict[str, PriorityClass] = field(default_factory=dict)
    secrets: dict[str, frozenset[str]] = field(default_factory=dict)
    """The keys of the Secrets that the values file names. No value of a Secret is kept."""
    quotas: list[Object] = field(default_factory=list)
    tenants: dict[str, str] = field(default_factory=dict)
    """The tenant of each namespace that a Tenant names."""
    kinds: list[CustomKind] = field(default_factory=list)
    accounts: Accounts = field(default_factory=Accounts)
    device_classes: dict[str, str] = field(default_factory=dict)
    """The extended resource name of each device class, perhaps ""."""
    dra: str = ""
    """Group and version of DRA, "" if the API server does not serve it."""
    drivers: Counter[str] = field(default_factory=Counter)
    """Devices in ResourceSlices, by driver."""
    installation: Installation = field(default_factory=Installation)
    unreadable: list[Unread] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    """Kinds with too many objects: only the first ones were read."""
    failed_lists: dict[str, str] = field(default_factory=dict)
    """Custom kinds whose list failed, with the reason."""

    def is_known(self, *resources: str) -> bool:
        """Return whether all objects of these resources could be read."""
        return not {each.resource for each in self.unreadable}.intersection(resources)


def read_time(text: object) -> datetime | None:
    """Return a time of the API server, None if it is absent or invalid."""
    if not isinstance(text, str):
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


async def take_snapshot(
    survey: ClusterSurvey, namespace: str, planned: Assumptions | None = None
) -> ClusterSnapshot:
    """Read a cluster. `namespace` is that of Fairgate.

    `planned`: settings to judge by. They replace the installed settings. Raises ClusterError,
    InvalidInput.
    """
    reading = _Reading(survey)
    await reading.read_server()
    await reading.read_installation(namespace)
    if planned is not None:
        reading.found.assumptions = planned
        await reading.read_secrets(namespace, planned)
    await reading.read_accounts()
    await reading.read_nodes()
    await reading.read_workloads()
    return reading.found


async def watch_expired_lease(survey: ClusterSurvey, namespace: str, seen: ClusterSnapshot) -> None:
    """Read an expired Lease again after its duration. The first reading may be older than that.

    Raises ClusterError.
    """
    found = seen.installation
    spec = (found.lease or {}).get("spec") or {}
    renewed, seconds = read_time(spec.get("renewTime")), int(spec.get("leaseDurationSeconds") or 0)
    if renewed is None or (datetime.now(UTC) - renewed).total_seconds() <= seconds:
        return
    await asyncio.sleep(seconds)
    found.lease = await survey.get(_lease_path(namespace))
    again = ((found.lease or {}).get("spec") or {}).get("renewTime")
    found.is_lease_renewed = read_time(again) not in (None, renewed)


def _lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/fairgate-controller"


class _Reading:
    """Fills one snapshot."""

    def __init__(self, survey: ClusterSurvey) -> None:
        self._survey = survey
        self.found = ClusterSnapshot()

    async def read_server(self) -> None:
        version = await self._get("version", "/version") or {}
        self.found.version = str(version.get("gitVersion", ""))
        served = await self._get("admissionregistration.k8s.io", ADMISSION) or {}
        names = (str(each.get("name", "")) for each in served.get("resources") or ())
        self.found.admission = frozenset(names)

    async def read_installation(self, namespace: str) -> None:
        found = self.found.installation
        space = f"namespaces/{namespace}"

        def add(item: Object) -> None:
            if item["metadata"]["name"].startswith("fairgate-"):
                found.deployments[item["metadata"]["name"]] = item

        await self._read_each("deployments", f"/apis/apps/v1/{space}/deployments", add)
        enforcement = f"/api/v1/{space}/configmaps/fairgate-enforcement"
        found.enforcement = await self._get("configmaps", enforcement)
        for attribute in ("mutating", "validating"):
            resource = f"{attribute}webhookconfigurations"
            item = await self._get(resource, f"{ADMISSION}/{resource}/fairgate")
            setattr(found, attribute, item)
        await self._read_each("tenants.fairgate.io", f"{GROUP}/tenants", self._add_tenant)
        if not found.exists:
            return
        resource = "validatingadmissionpolicybindings"
        await self._read_each(resource, f"{ADMISSION}/{resource}", found.bindings.append)
        await self._read_each(
            "endpointslices",
            f"/apis/discovery.k8s.io/v1/{space}/endpointslices",
            found.endpoints.append,
        )
        found.lease = await self._get("leases", _lease_path(namespace))
        found.policy = await self._get("policies.fairgate.io", f"{GROUP}/policies/default")
        await self._read_each("pools.fairgate.io", f"{GROUP}/pools", found.pools.append)
        canary = "/api/v1/namespaces/fairgate-canary/pods/fairgate-canary"
        found.canary = await self._get("pods", canary)
        await self._read_each("pods", f"/api/v1/{space}/pods", found.pods.append)
        await self._read_each("events", f"/api/v1/{space}/events", found.events.append)
        if webhook := found.deployments.get("fairgate-webhook"):
            self.found.assumptions = assumptions.installed_settings(webhook)

    async def read_secrets(self, namespace: str, planned: Assumptions) -> None:
        for named in planned.references.secrets if planned.references else ():
            path = f"/api/v1/namespaces/{namespace}/secrets/{named.name}"
            found = await self._get("secrets", path)
            if found is not None:
                self.found.secrets[named.name] = frozenset(found.get("data") or ())

    def _add_tenant(self, item: Object) -> None:
        self.found.installation.tenants.append(item)
        for namespace in (item.get("spec") or {}).get("namespaces") or ():
            self.found.tenants.setdefault(namespace, item["metadata"]["name"])

    async def read_accounts(self) -> None:
        accounts = self.found.accounts
        await self._read_each("clusterroles", f"{RBAC}/clusterroles", accounts.add_role)
        await self._read_each(
            "clusterrolebindings", f"{RBAC}/clusterrolebindings", accounts.add_binding
        )

    async def read_nodes(self) -> None:
        found = self.found

        def add_node(node: Object) -> None:
            found.nodes += 1
            for name, amount in ((node.get("status") or {}).get("capacity") or {}).items():
                if "/" in name and str(amount).isdecimal() and int(amount):
                    found.resources[name] = found.resources.get(name, 0) + int(amount)

        def add_class(item: Object) -> None:
            extended = (item.get("spec") or {}).get("extendedResourceName")
            found.device_classes[item["metadata"]["name"]] = extended or ""

        def add_slice(item: Object) -> None:
            spec = item.get("spec") or {}
            found.drivers[str(spec.get("driver", ""))] += len(spec.get("devices") or ())

        def add_priority(item: Object) -> None:
            known = read_priority(msgspec.convert(item, objects.PriorityClassObject), Millis(0))
            found.classes[known.priority.name] = known.priority

        await self._read_each("nodes", "/api/v1/nodes", add_node)
        group = await self._get("resource.k8s.io", "/apis/resource.k8s.io") or {}
        if version := (group.get("preferredVersion") or {}).get("groupVersion"):
            found.dra = version
            await self._read_each("deviceclasses", f"/apis/{version}/deviceclasses", add_class)
            await self._read_each("resourceslices", f"/apis/{version}/resourceslices", add_slice)
        await self._read_each(
            "priorityclasses", "/apis/scheduling.k8s.io/v1/priorityclasses", add_priority
        )
        await self._read_each("resourcequotas", "/api/v1/resourcequotas", found.quotas.append)

    async def read_workloads(self) -> None:
        found = self.found
        await self._read_each(
            "customresourcedefinitions",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            lambda item: found.kinds.append(custom_kind(item)),
            LARGE_PAGE,
        )
        workloads = Workloads(PodJudge(found.assumptions, found.classes))
        for path, kind in WORKLOADS:
            await self._read_templates(kind.resource, path, KINDS[kind.resource], [kind], workloads)
        for custom in found.kinds:
            name = (custom.group, custom.resource)
            known = found.assumptions.templates
            listed = [each for each in known if (each.group, each.resource) == name]
            kinds = list(dict.fromkeys([*custom.templates, *listed]))
            if kinds and custom.is_namespaced and custom.versions:
                path = f"/apis/{custom.group}/{custom.versions[-1]}/{custom.resource}"
                try:
                    await self._read_templates(custom.name, path, custom.kind, kinds, workloads)
                except ClusterUnavailable as error:  # such as a broken conversion webhook
                    found.failed_lists[custom.name] = str(error)
        await self._read_each("pods", "/api/v1/pods", workloads.add_pod)
        found.workloads = list(workloads)

    async def _read_templates(
        self,
        resource: str,
        path: str,
        object_kind: str,
        kinds: Sequence[TemplateKind],
        workloads: Workloads,
    ) -> None:
        def add(item: Object) -> None:
            for kind in kinds:
                workloads.add_templates(kind, object_kind, item)

        await self._read_each(resource, path, add, LARGE_PAGE * 5)

    async def _get(self, resource: str, path: str) -> Object | None:
        try:
            return await self._survey.get(path)
        except ClusterRefused as error:
            self._record_refusal(error, Unread("get", resource, path))
            return None

    async def _read_each(
        self, resource: str, path: str, add: Callable[[Object], Any], page: int = PAGE
    ) -> None:
        """Call `add` for the first `MOST` objects of a list."""
        number = 0
        try:
            async for items in self._survey.list_pages(path, page):
                for item in items:
                    number += 1
                    add(item)
                if number >= MOST:
                    self.found.truncated.append(resource)
                    return
        except ClusterRefused as error:
            self._record_refusal(error, Unread("list", resource, path))

    def _record_refusal(self, error: ClusterRefused, unread: Unread) -> None:
        if error.status == FORBIDDEN[0]:
            raise ClusterUnavailable(
                f"The API server does not accept the credentials of the kubeconfig: {error}; "
                "log in again."
            ) from error
        if error.status not in FORBIDDEN:
            raise error
        self.found.unreadable.append(unread)
