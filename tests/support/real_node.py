"""Operations of the tests on a real node: the chart in it, teams, Jobs, a steady load."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.devcluster.binaries import redis_server
from app.devcluster.fairgate_install import CHART, NAMESPACE
from app.devcluster.node.component_files import SANDBOX_IMAGE
from app.devcluster.node.images import CTR, write_archive
from app.devcluster.node.namespaces import run
from app.devcluster.node.real_node import RealNode
from app.devcluster.readiness import is_pod_held
from tests.support.cluster_driver import GPU, Object, Stage, until
from tests.support.documented_lines import run_documented

IMAGE = "localhost/fairgate:dev"
REDIS_IMAGE = "fairgate.local/redis:dev"
INSTALL_SECONDS = 180.0
VALUES = (
    "mode=Enforce",
    "image.repository=localhost/fairgate",
    "image.tag=dev",
    "image.pullPolicy=Never",
    "redis.bundled.enabled=true",
    f"redis.bundled.image={REDIS_IMAGE}",
)
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
LOAD_PER_SECOND = 20


class Installation:
    """Fairgate on a real node, installed by helm from the image, with the Redis of the chart."""

    def __init__(self, node: RealNode, folder: Path) -> None:
        self.node = node
        self.stage = Stage(node, folder=folder)  # type: ignore[arg-type]
        self._folder = folder

    def helm(self, *args: str) -> str:
        """Run helm in the namespace of Fairgate, and return its output."""
        where = ("--namespace", NAMESPACE, "--kubeconfig", str(self.node.kubeconfig))
        done = subprocess.run(
            [self.node.details().helm, *args, *where],
            env={"PATH": os.defpath, "HOME": str(self._folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"helm {' '.join(args)}: {done.stderr}\n{self.pods()}"
        return done.stdout

    def install(self, *values: str) -> None:
        """Install or upgrade the chart, and return when all pods are ready and pods are held.

        Its namespace accepts only pods of the restricted Pod Security Standard.
        """
        namespace = {"name": NAMESPACE, "labels": RESTRICTED}
        created = {"apiVersion": "v1", "kind": "Namespace", "metadata": namespace}
        self.node.kubectl("apply", "-f", "-", stdin=json.dumps(created))
        flags = [part for value in (*VALUES, *values) for part in ("--set", value)]
        wait = ("--wait", "--timeout", f"{INSTALL_SECONDS:.0f}s")
        self.helm("upgrade", "--install", "fairgate", str(CHART), *flags, *wait)
        with self.stage.api() as api:
            until("pods are held", lambda: is_pod_held(api, [GPU], []), INSTALL_SECONDS)
        until("a controller leads", lambda: self.leader() != "")

    def leader(self) -> str:
        """Return the pod that leads; empty if none does."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/fairgate-controller"
        with self.stage.api() as api:
            return str((api.find(path) or {}).get("spec", {}).get("holderIdentity") or "")

    def pods(self) -> str:
        """Return Fairgate's pods as kubectl prints them."""
        return self.node.kubectl("get", "pods", "-n", NAMESPACE, "-o", "wide")

    def webhooks(self) -> list[Object]:
        """Return the pods of the webhook."""
        label = "app.kubernetes.io/component=webhook"
        found: list[Object] = self.stage.get("pods", "-n", NAMESPACE, "-l", label)["items"]
        return found

    def revision(self) -> str:
        """Return the current revision of the release."""
        history = json.loads(self.helm("history", "fairgate", "--output", "json"))
        return str(history[-1]["revision"])

    def release_all(self) -> None:
        """Run `fairgate release --all` as the cluster administrator."""
        argv = [sys.executable, "-m", "app", "release", "--all", "--yes"]
        subprocess.run(
            [*argv, "--kubeconfig", str(self.node.kubeconfig)], capture_output=True, check=True
        )

    def documented(self, page: str, after: str) -> None:
        """Run the shell lines that follow a sentence of a page."""
        run_documented(page, after, self.node.details().kubectl, self.node.kubeconfig)

    def kill(self, pod: Object) -> None:
        """Send SIGKILL to the container of a pod."""
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        signal = ("tasks", "kill", "--signal", "SIGKILL", container)
        run(self.node.namespaces.command(*CTR, *signal))

    def scale_redis(self, replicas: int) -> None:
        """Stop Redis with 0 replicas, or start it with 1; return when it is done."""
        where = ("-n", NAMESPACE, "deployment/fairgate-redis")
        self.node.kubectl("scale", f"--replicas={replicas}", *where)
        self.node.kubectl("rollout", "status", *where)
        label = ("-l", "app.kubernetes.io/name=fairgate-redis")
        until(
            f"Redis has {replicas} pods",
            lambda: len(self.stage.get("pods", "-n", NAMESPACE, *label)["items"]) == replicas,
        )

    def team(self, name: str) -> str:
        """Create a namespace and a Tenant for it."""
        self.stage.namespace(name)
        self.stage.tenant(name, "1", name)
        return name

    def allocations(self) -> list[str]:
        """Return the devices that the kubelet gave to each container, oldest first."""
        log = (Path(self.node.details().logs) / "fake-device-plugin.log").read_text()
        return re.findall(r"^allocated (\S+)$", log, re.MULTILINE)

    @contextmanager
    def load(self, namespace: str) -> Iterator[Load]:
        """Create GPU pods that fit nowhere, at a steady rate, while the block runs."""
        load, over = Load(), threading.Event()
        creator = threading.Thread(target=self._create, args=(namespace, load, over), daemon=True)
        creator.start()
        try:
            yield load
        finally:
            over.set()
            creator.join()
        print(f"\n{load.created} of {load.created + len(load.failures)} pods were created")

    def _create(self, namespace: str, load: Load, over: threading.Event) -> None:
        path, due = f"/api/v1/namespaces/{namespace}/pods", time.monotonic()
        with self.stage.api() as api:
            while not over.wait(max(0.0, due - time.monotonic())):
                due = max(due + 1 / LOAD_PER_SECOND, time.monotonic())
                try:
                    pod = api.call("POST", path, gpu_pod(9, generateName="load-"))
                except (ClusterRefused, ClusterUnavailable) as error:
                    load.failures.append(str(error))
                    continue
                load.created += 1
                load.unheld += not pod["spec"].get("schedulingGates")


@dataclass
class Load:
    """What happened to the pods of a steady load so far."""

    created: int = 0
    unheld: int = 0
    failures: list[str] = field(default_factory=list)

    def wait(self, more: int = 3 * LOAD_PER_SECOND) -> None:
        """Wait until this many further pods were created."""
        goal = self.created + more
        until(f"{more} more pods are created", lambda: self.created >= goal)


def gpu_pod(gpus: int, *, args: tuple[str, ...] = (), **metadata: Any) -> Object:
    """Return a pod with GPUs, of an image that every node of the tests has."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _spec(gpus, args)}


def job(name: str, pods: int) -> Object:
    """Return a Job of many pods with one GPU each. Each pod runs for a second."""
    spec = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": {"spec": _spec(1, ("1s",))},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def redis_archive(path: Path) -> None:
    """Write an image with the Redis server of this machine and its libraries."""
    server = redis_server()
    linked = subprocess.run(["ldd", str(server)], capture_output=True, text=True, check=True)
    libraries = re.findall(r"(/\S+) \(0x", linked.stdout)
    program = "/usr/local/bin/redis-server"
    files = {library: Path(library) for library in libraries} | {program: server}
    write_archive(path, REDIS_IMAGE, files, program)


def _spec(gpus: int, args: tuple[str, ...]) -> Object:
    container = {
        "name": "train",
        "image": SANDBOX_IMAGE,
        "imagePullPolicy": "Never",
        "args": list(args),
        "resources": {"limits": {GPU: gpus}},
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
