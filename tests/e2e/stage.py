"""What the end-to-end tests do to a cluster and read from it, always through the API server."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.dev.cluster import Cluster
from app.dev.kubectl import Kubectl

GATE = "fairgate.io/queue"
RELEASE = "fairgate.io/release"
GPU = "nvidia.com/gpu"
PATIENCE = 90.0
POLL = 0.2

Object = dict[str, Any]


class NeverTrueError(AssertionError):
    """A condition did not come true in time."""


def until(what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for a condition; generous, because machines are slow, and never longer than needed."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise NeverTrueError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL)


def next_second() -> None:
    """Return in the next whole second: the API server tells in those when anything was created.

    Of pods of one second uids decide who is older; and who comes in that of the installation may
    have been there before.
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


@dataclass
class Stage:
    """A cluster, and what one test put into it."""

    cluster: Cluster
    namespaces: list[str] = field(default_factory=list)
    objects: list[tuple[str, str]] = field(default_factory=list)
    folder: Path = Path()

    def apply(self, namespace: str, *objects: Object) -> None:
        """`kubectl apply` as the person who set the cluster up."""
        text = "\n---\n".join(map(json.dumps, objects))
        self.cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)

    def namespace(self, name: str) -> str:
        """Create a namespace that is emptied when the test ends."""
        self.apply("default", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.namespaces.append(name)
        # Pods need it, and the controller that makes it may still be recovering from a fault.
        account = ("--for=create", "serviceaccount/default", "-n", name, "--timeout=90s")
        self.cluster.kubectl("wait", *account)
        return name

    def tenant(self, name: str, weight: str = "1", *namespaces: str, **spec: Any) -> None:
        """Apply a Tenant that is deleted when the test ends."""
        self.apply("default", tenant(name, weight, *namespaces, **spec))
        self.objects.append(("tenant", name))

    def priority_class(self, name: str, value: int) -> str:
        """Create a PriorityClass that is deleted when the test ends."""
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
        self.apply("default", {**kind, "metadata": {"name": name}, "value": value})
        self.objects.append(("priorityclass", name))
        return name

    def get(self, what: str, *args: str) -> Any:
        """`kubectl get`, as JSON."""
        return json.loads(self.cluster.kubectl("get", what, *args, "-o", "json"))

    def pods(self, namespace: str) -> list[Object]:
        """Return all pods of a namespace."""
        return list(self.get("pods", "-n", namespace)["items"])

    def held(self, namespace: str) -> list[str]:
        """Return the names of the pods that our gate holds."""
        return [name_of(p) for p in self.pods(namespace) if GATE in gates(p)]

    def running(self, namespace: str) -> list[str]:
        """Return the names of the pods that run."""
        return [name_of(p) for p in self.pods(namespace) if p["status"].get("phase") == "Running"]

    def using(self, namespace: str) -> list[Object]:
        """Return the pods that are past the gate and have not finished."""
        over = ("Succeeded", "Failed")
        return [
            p for p in self.pods(namespace) if not gates(p) and p["status"]["phase"] not in over
        ]

    def delete(self, namespace: str, *names: str) -> None:
        """Delete pods at once."""
        self.cluster.kubectl(
            "delete", "pod", "-n", namespace, "--grace-period=0", "--force", *names
        )

    def block(self, namespace: str, nodes: int = 8) -> list[str]:
        """Fill the cluster, a pod a node; return the pods, once they run."""
        names = [f"blocker-{number}" for number in range(nodes)]
        self.apply(namespace, *(pod(name, 8) for name in names))
        until("the blockers run", lambda: len(self.running(namespace)) == nodes)
        return names

    def as_user(self, name: str, namespace: str) -> Kubectl:
        """Return kubectl as a real person who may edit a namespace."""
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
        kubeconfig.write_text(self.cluster.user(name))
        return Kubectl(Path(self.cluster.details().kubectl), kubeconfig, self.folder)

    def metric(self, role: str, name: str, label: str = "") -> float:
        """Return the sum of a metric, of the series that carry a label, over a role's processes."""
        total = 0.0
        for url in self.cluster.ops_urls(role):
            with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
                for line in answer.read().decode().splitlines():
                    if line.startswith(name) and line[len(name)] in " {" and label in line:
                        total += float(line.rpartition(" ")[2])
        return total

    def clear(self) -> None:
        """Remove what the test made, and wait until nothing of it takes room."""
        for namespace in self.namespaces:
            for kind in ("daemonsets", "deployments", "jobs", "pods"):
                self.cluster.kubectl(
                    "delete", kind, "--all", "-n", namespace, "--grace-period=0", "--force",
                    "--ignore-not-found",
                )  # fmt: skip
        for kind, name in self.objects:
            self.cluster.kubectl("delete", kind, name, "--ignore-not-found")
        for namespace in self.namespaces:
            until(f"{namespace} is empty", lambda n=namespace: not self.pods(n))  # type: ignore[misc]


def audited(cluster: Cluster) -> Iterator[Object]:
    """Yield what the API server's own audit log tells, in its order."""
    *lines, _ = cluster.audit_log.read_text().split("\n")  # the last is still being written
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
