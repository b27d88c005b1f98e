"""Operations of the end-to-end tests on a cluster, always through the API server."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
import urllib.request
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.devcluster.api_client import SetupClient
from app.devcluster.cluster import LocalCluster
from app.devcluster.control_plane import ControlPlane
from app.devcluster.kubectl import Kubectl
from app.devcluster.readiness import is_established

GATE = "fairgate.io/queue"
RELEASE = "fairgate.io/release"
GPU = "nvidia.com/gpu"
PATIENCE = 90.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 0.4

PLURALS = {
    ("v1", "Node"): "nodes",
    ("v1", "Pod"): "pods",
    ("apps/v1", "Deployment"): "deployments",
    ("batch/v1", "Job"): "jobs",
    ("resource.k8s.io/v1", "ResourceClaim"): "resourceclaims",
    ("scheduling.k8s.io/v1", "PriorityClass"): "priorityclasses",
    ("fairgate.io/v1alpha1", "Policy"): "policies",
    ("fairgate.io/v1alpha1", "Pool"): "pools",
    ("fairgate.io/v1alpha1", "Tenant"): "tenants",
}
"""The kinds that `apply` creates without kubectl."""

NAMESPACED = (
    "configmaps",
    "deployments",
    "events",
    "jobs",
    "poddisruptionbudgets",
    "pods",
    "resourceclaims",
    "resourcequotas",
    "serviceaccounts",
)

SERVED = {
    "configmaps": "api/v1",
    "events": "api/v1",
    "namespaces": "api/v1",
    "nodes": "api/v1",
    "pods": "api/v1",
    "resourcequotas": "api/v1",
    "serviceaccounts": "api/v1",
    "clusterrolebindings": "apis/rbac.authorization.k8s.io/v1",
    "clusterroles": "apis/rbac.authorization.k8s.io/v1",
    "deviceclasses": "apis/resource.k8s.io/v1",
    "resourceclaims": "apis/resource.k8s.io/v1",
    "poddisruptionbudgets": "apis/policy/v1",
    "priorityclasses": "apis/scheduling.k8s.io/v1",
    "mutatingwebhookconfigurations": "apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies": "apis/admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations": "apis/admissionregistration.k8s.io/v1",
    "policies": "apis/fairgate.io/v1alpha1",
    "pools": "apis/fairgate.io/v1alpha1",
    "tenants": "apis/fairgate.io/v1alpha1",
}
"""The resources that `Stage` reads and deletes without kubectl."""

SHORT = {"pdb": "poddisruptionbudgets", "policies.fairgate.io": "policies"}

GET = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
GET.add_argument("names", nargs="*")
GET.add_argument("-n", dest="namespace", default="default")
GET.add_argument("--field-selector", dest="fieldSelector")
GET.add_argument("-l", dest="labelSelector")

WORKLOADS = (
    "apis/apps/v1/%s/daemonsets",
    "apis/apps/v1/%s/deployments",
    "apis/batch/v1/%s/jobs",
    "api/v1/%s/pods",
)

AS_KUBECTL = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

Object = dict[str, Any]


class NeverTrueError(AssertionError):
    """A condition did not become true in time."""


def until(what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition. The time limit is generous, because test machines may be slow."""
    began = time.monotonic()
    while not true():
        if time.monotonic() > began + seconds:
            raise NeverTrueError(f"not within {seconds:.0f} s: {what}")
        pause(began)


def pause(began: float) -> None:
    """Wait before the next look at a condition: a tenth of the time since `began`, within bounds.

    Each look costs this process, and usually the API server, some milliseconds of CPU time.
    """
    waited = time.monotonic() - began
    time.sleep(min(max(waited / 10, SHORTEST_PAUSE), LONGEST_PAUSE))


def next_second() -> None:
    """Wait for the next whole second: creation times in the API server have one-second resolution.

    Pods created in the same second are ordered by uid. A pod created in the second of the
    installation may count as older than the installation.
    """
    now = int(time.time())
    until("the second is over", lambda: int(time.time()) > now)


def pod(name: str, gpus: int = 1, *, priority: str = "", **spec: Any) -> Object:
    """Return an ordinary pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": template(gpus, priority=priority)["spec"] | spec,
    }


def template(gpus: int, *, priority: str = "", policy: str = "Never") -> Object:
    """Return an ordinary pod template."""
    container: Object = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    if gpus:
        container["resources"]["limits"] = {GPU: gpus}
    spec: Object = {"restartPolicy": policy, "containers": [container]}
    if priority:
        spec["priorityClassName"] = priority
    return {"metadata": {"labels": {"app": "x"}}, "spec": spec}


def tenant(name: str, weight: str = "1", *namespaces: str, **spec: Any) -> Object:
    """Return a Tenant."""
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": name},
        "spec": {"weight": weight, "namespaces": list(namespaces), **spec},
    }


_idle: weakref.WeakKeyDictionary[LocalCluster, list[SetupClient]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def administrator(cluster: LocalCluster) -> Iterator[SetupClient]:
    """Yield a connection as the cluster administrator.

    It is kept for the next call: a new one takes more CPU time than most requests.
    """
    if cluster not in _idle:
        weakref.finalize(cluster, _close, _idle.setdefault(cluster, []))
    idle = _idle[cluster]
    api = idle.pop() if idle else ControlPlane.load(cluster.folder, cluster.processes).api()
    try:
        yield api
    finally:
        idle.append(api)


def _close(idle: list[SetupClient]) -> None:
    for api in idle:
        api.__exit__()


def path_of(kind: str, namespace: str, name: str = "") -> str | None:
    """Return the path of the objects of a kind as kubectl names it; None if not in `SERVED`."""
    spellings = (SHORT.get(kind, kind), f"{kind}s", f"{kind}es", f"{kind[:-1]}ies")
    resource = next((each for each in spellings if each in SERVED), None)
    if resource is None:
        return None
    where = f"/namespaces/{namespace}" if resource in NAMESPACED else ""
    return f"/{SERVED[resource]}{where}/{resource}" + (f"/{name}" if name else "")


def create_crds(cluster: LocalCluster, crds: Sequence[Object]) -> list[str]:
    """Create CRDs, wait until their kinds are served, and return their names for kubectl.

    `kubectl apply` would refuse a CRD that is larger than an annotation may be.
    """
    whole = {"kind": "List", "apiVersion": "v1", "items": list(crds)}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(whole))
    names = [name_of(crd) for crd in crds]
    with administrator(cluster) as api:
        until("the kinds are served", lambda: all(is_established(api, name) for name in names))
    return [f"crd/{name}" for name in names]


@dataclass
class Stage:
    """A cluster, and the objects that one test created in it."""

    cluster: LocalCluster
    namespaces: list[str] = field(default_factory=list)
    objects: list[tuple[str, str]] = field(default_factory=list)
    folder: Path = Path()

    def api(self) -> contextlib.AbstractContextManager[SetupClient]:
        """Return a connection as the cluster administrator; use it in a `with` statement."""
        return administrator(self.cluster)

    def apply(self, namespace: str, *objects: Object) -> None:
        """Apply objects as the cluster administrator, as `kubectl apply` does.

        A run of kubectl takes a tenth of a second of CPU time, so `_create` creates new objects.
        """
        rest = list(objects)
        with self.api() as api:
            while rest and _create(api, namespace, rest[0]):
                del rest[0]
        if rest:
            text = "\n---\n".join(map(json.dumps, rest))
            self.cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

    def namespace(self, name: str) -> str:
        """Create a namespace that is emptied when the test ends."""
        created = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        with self.api() as api:
            api.create("/api/v1/namespaces", created)
            self.namespaces.append(name)
            # Pods need it, and the controller that creates it may still be recovering from a fault.
            until("the default service account", lambda: api.find(account) is not None)
        return name

    def tenant(self, name: str, weight: str = "1", *namespaces: str, **spec: Any) -> None:
        """Apply a Tenant that is deleted when the test ends."""
        self.apply("default", tenant(name, weight, *namespaces, **spec))
        self.objects.append(("tenant", name))

    def priority_class(self, name: str, value: int) -> str:
        """Create a PriorityClass that is deleted when the test ends; wait until pods may use it.

        The API server first needs to see it, and the webhook its twin.
        """
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        self.apply("default", {**kind, "metadata": {"name": name}, "value": value})
        self.objects.append(("priorityclass", name))
        until(f"pods may use PriorityClass {name}", partial(self._accepts_class, name))
        return name

    def _accepts_class(self, name: str) -> bool:
        """Return whether a pod of this PriorityClass could be created."""
        with self.api() as api:
            try:
                path = "/api/v1/namespaces/default/pods?dryRun=All"
                api.call("POST", path, pod("dry-run", priority=name))
            except ClusterUnavailable:
                return False
            except ClusterRefused as error:
                if "no PriorityClass" not in str(error):
                    raise
                return False
        return True

    def get(self, what: str, *args: str) -> Any:
        """Return what `kubectl get` prints as JSON. One name at most if the kind is in `SERVED`."""
        told = GET.parse_args(args)
        path = path_of(what, told.namespace, *told.names)
        if path is None:
            return json.loads(self.cluster.kubectl("get", what, *args, "-o", "json"))
        selectors = {"fieldSelector": told.fieldSelector, "labelSelector": told.labelSelector}
        query = urlencode({key: value for key, value in selectors.items() if value})
        with self.api() as api:
            return api.call("GET", f"{path}?{query}" if query else path)

    def pods(self, namespace: str) -> list[Object]:
        """Return all pods of a namespace."""
        with self.api() as api:
            items = api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return [{"apiVersion": "v1", "kind": "Pod", **item} for item in items]

    def held(self, namespace: str) -> list[str]:
        """Return the names of the pods that have Fairgate's gate."""
        return [name_of(p) for p in self.pods(namespace) if GATE in gates(p)]

    def running(self, namespace: str) -> list[str]:
        """Return the names of the running pods."""
        return [name_of(p) for p in self.pods(namespace) if p["status"].get("phase") == "Running"]

    def using(self, namespace: str) -> list[Object]:
        """Return the released pods that have not finished."""
        over = ("Succeeded", "Failed")
        return [
            p for p in self.pods(namespace) if not gates(p) and p["status"]["phase"] not in over
        ]

    def delete(self, namespace: str, *names: str) -> None:
        """Delete pods at once; return when they are gone."""
        pods = path_of("pods", namespace)
        with self.api() as api:
            gone = {
                api.call("DELETE", f"{pods}/{name}", {"gracePeriodSeconds": 0})["metadata"]["uid"]
                for name in names
            }
        until(
            "they are gone",
            lambda: gone.isdisjoint(p["metadata"]["uid"] for p in self.pods(namespace)),
        )

    def block(self, namespace: str, nodes: int = 8) -> list[str]:
        """Fill the cluster with one pod per node; return the pods when they run."""
        names = [f"blocker-{number}" for number in range(nodes)]
        self.apply(namespace, *(pod(name, 8) for name in names))
        until("the blockers run", lambda: len(self.running(namespace)) == nodes)
        return names

    def as_user(self, name: str, namespace: str) -> Kubectl:
        """Return kubectl with the credentials of a user that may edit a namespace."""
        binding = f"edit-{name}"
        self.cluster.kubectl(
            "create",
            "rolebinding",
            binding,
            "-n",
            namespace,
            "--clusterrole=edit",
            f"--user={name}",
        )
        kubeconfig = self.folder / f"{name}.kubeconfig"
        kubeconfig.write_text(self.cluster.create_user(name))
        return Kubectl(Path(self.cluster.details().kubectl), kubeconfig, self.folder)

    def metric(self, role: str, name: str, label: str = "") -> float:
        """Return the sum of a metric over a role's processes, for series with this label."""
        total = 0.0
        for url in self.cluster.ops_urls(role):
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith(name) and line[len(name)] in " {" and label in line:
                        total += float(line.rpartition(" ")[2])
        return total

    def clear(self) -> None:
        """Remove the objects of the test, and wait until its pods are gone."""
        for namespace in self.namespaces:
            until(f"{namespace} is empty", lambda n=namespace: self._empty(n))  # type: ignore[misc]
        self.delete_objects()

    def delete_objects(self) -> None:
        """Delete the objects of the test that are in no namespace of the test."""
        with self.api() as api:
            for kind, name in dict.fromkeys(self.objects):
                path = path_of(kind, "default", name)
                if path is None:
                    self.cluster.kubectl("delete", kind, name, "--ignore-not-found")
                elif api.find(path) is not None:
                    api.call("DELETE", path)

    def _empty(self, namespace: str) -> bool:
        """Delete the workloads of a namespace; return whether no pod was left before."""
        options = "gracePeriodSeconds=0&propagationPolicy=Background"
        try:
            with self.api() as api:
                for kind in WORKLOADS:
                    api.call("DELETE", f"/{kind % f'namespaces/{namespace}'}?{options}")
        except ClusterUnavailable:  # many pods take longer than one request may
            return False
        return not self.pods(namespace)


def _create(api: SetupClient, namespace: str, item: Object) -> bool:
    """Create an object as kubectl does; False: it exists or is of another kind."""
    plural = PLURALS.get((str(item.get("apiVersion")), str(item.get("kind"))))
    if plural is None:
        return False
    version = item["apiVersion"]
    where = f"/{'apis' if '/' in version else 'api'}/{version}"
    metadata = dict(item["metadata"])
    if plural in NAMESPACED:
        where += f"/namespaces/{metadata.setdefault('namespace', namespace)}"
    annotations = metadata.get("annotations") or {}
    applied = json.dumps({**item, "metadata": {**metadata, "annotations": annotations}})
    metadata["annotations"] = {**annotations, LAST_APPLIED: f"{applied}\n"}
    try:
        api.call("POST", f"{where}/{plural}?{AS_KUBECTL}", {**item, "metadata": metadata})
    except ClusterRefused as error:
        if error.status != 409:
            raise
        return False
    return True


def audited(cluster: LocalCluster) -> Iterator[Object]:
    """Yield the entries of the API server's audit log in order."""
    *lines, _ = cluster.audit_log.read_text().split("\n")  # the last line may be incomplete
    yield from map(json.loads, lines)


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def gates(item: Object) -> list[str]:
    return [gate["name"] for gate in item["spec"].get("schedulingGates", [])]


def stamp(item: Object) -> str:
    return str(item["metadata"].get("annotations", {}).get(RELEASE, ""))


def released_in_order(pods: Iterable[Object]) -> list[str]:
    """Return the names of released pods in the order of their releases."""
    stamps = sorted(
        (tuple(map(int, stamp(p).split("."))), name_of(p)) for p in pods if "." in stamp(p)
    )
    return [name for _, name in stamps]
