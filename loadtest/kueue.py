"""Kueue on the cluster of the measures: a program that the user has built, and its objects.

The folder is the source of Kueue with its program in `bin/manager`, built by
`go build -o bin/manager ./cmd/kueue`. CustomResourceDefinitions and webhooks are read from that
folder; this repository has none of them.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.devcluster.cluster import LocalCluster
from app.devcluster.processes import Program
from app.devcluster.readiness import free_ports
from app.kube.client import Client
from app.tls.certificate_authority import new_authority, write_private
from loadtest import load

NAME = "kueue"
NAMESPACE = "bench-kueue"
"""The namespace of the pods that Kueue manages."""

QUEUE = "bench"
QPS = 1000
GATE = "kueue.x-k8s.io/admission"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
FIXED = "/etc/kueue/metrics/certs"
"""The folder in which Kueue looks for a certificate, also with its metrics server off."""

PRIVATE_ETC = (
    'cp /etc/passwd "$0" && mount -t tmpfs none /etc && cp "$0"/passwd /etc && '
    f'mkdir -p {FIXED} && cp "$0"/tls.crt "$0"/tls.key {FIXED} && exec "$@"'
)
"""Runs a program with another /etc, which contains only that folder and the users."""

AMPLE = {"cpu": "1000000", "memory": "1000Ti", load.RESOURCE: "1000000"}


class Kueue:
    """Kueue for the pods of `NAMESPACE`. Its program runs only between `start` and `stop`."""

    def __init__(self, folder: Path, cluster: LocalCluster, client: Client) -> None:
        """Raises InvalidInput if the folder has no program or no manifests."""
        self._program = program(folder)
        self._manifests = folder / "config/components"
        self._processes = cluster.processes
        self._kubeconfig = cluster.kubeconfig
        self._own = cluster.folder / NAME
        self._client = client

    async def install(self) -> None:
        """Create definitions, webhooks and one ample queue, and stop the program again."""
        for file in sorted((self._manifests / "crd/bases").glob("*.yaml")):
            await load.create(self._client, CRDS, yaml.safe_load(file.read_text()))
        await load.until(self._are_served, "the API server does not serve Kueue's objects")
        [port] = free_ports(1)
        bundle = self._configure(port)
        manifests = (self._manifests / "webhook/manifests.yaml").read_text()
        for body in filter(None, yaml.safe_load_all(manifests)):
            redirect(body, f"https://127.0.0.1:{port}", bundle)
            await load.create(self._client, f"{WEBHOOKS}/{body['kind'].lower()}s", body)
        await load.create_namespace(self._client, NAMESPACE)
        self._launch()
        for path, body in _objects():
            await load.until(partial(self._accepts, path, body), "Kueue refuses its own objects")
        await self._wait()
        self.stop()

    async def start(self) -> None:
        """Start the program, and return when it admits pods."""
        self._launch()
        await self._wait()

    def stop(self) -> None:
        """End the program. Pods of its namespace cannot be created or changed until `start`."""
        self._processes.stop(self._processes.alive(NAME))

    def _configure(self, port: int) -> str:
        """Write certificate and configuration. Return the CA, encoded for a webhook."""
        self._own.mkdir(mode=0o700)
        now = datetime.now(UTC)
        authority = new_authority(NAME, now, days=1)
        issued = authority.issue(
            NAME, names=["127.0.0.1"], server=True, client=False, now=now, days=1
        )
        write_private(self._own / "tls.crt", issued.certificate_pem)
        write_private(self._own / "tls.key", issued.key_pem)
        text = json.dumps(configuration(port, self._own))
        write_private(self._own / "config.yaml", text.encode())
        return base64.b64encode(authority.certificate_pem).decode()

    def _launch(self) -> None:
        gates = "--feature-gates=VisibilityOnDemand=false"  # its port and folder cannot be chosen
        argv = (str(self._program), f"--config={self._own / 'config.yaml'}", gates)
        alone = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", PRIVATE_ETC)
        environment = {"PATH": os.defpath, "KUBECONFIG": str(self._kubeconfig)}
        self._processes.start(Program(NAME, (*alone, str(self._own), *argv), environment))

    async def _wait(self) -> None:
        await load.until(self._creates, "Kueue's webhook does not answer")
        await load.until(self._admits, "Kueue admits no pod")
        await load.clear(self._client, [NAMESPACE])

    async def _are_served(self) -> bool:
        try:
            for name in ("workloads", "resourceflavors", "clusterqueues", "localqueues"):
                await load.read(self._client, f"{QUEUES}/{name}")
        except ClusterRefused as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS):
                raise
            return False
        return True

    async def _creates(self) -> bool:
        """Create a pod; return false while the webhook cannot be called."""
        return await self._accepts(load.pods_path(NAMESPACE), msgspec.json.decode(pod("probe")))

    async def _admits(self) -> bool:
        return not await load.gates_of(self._client, NAMESPACE, "probe")

    async def _accepts(self, path: str, body: dict[str, Any]) -> bool:
        self._processes.check(self._processes.recorded())
        try:
            await load.create(self._client, path, body)
        except ClusterUnavailable:  # the webhook cannot be called yet
            return False
        return True


def program(folder: Path) -> Path:
    """Return the program of Kueue. Raises InvalidInput if the folder lacks it or its manifests."""
    found = folder / "bin/manager"
    if not found.is_file() or not (folder / "config/components/webhook/manifests.yaml").is_file():
        raise InvalidInput(
            f"{folder} is not the source of Kueue with its program in bin/manager; build it there "
            "by `go build -o bin/manager ./cmd/kueue`, and name that folder by --kueue."
        )
    return found.absolute()


def pod(name: str) -> bytes:
    """Return the JSON of an ordinary pod in Kueue's queue."""
    body = msgspec.json.decode(load.pod(name, gated=False))
    body["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    return msgspec.json.encode(body)


def configuration(port: int, folder: Path) -> dict[str, Any]:
    """Return Kueue's configuration: pods only, a high request rate, its defaults otherwise."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "controller": {"groupKindConcurrency": {"Pod": 5, "Workload.kueue.x-k8s.io": 5}},
        "clientConnection": {"qps": QPS, "burst": QPS},
        "integrations": {"frameworks": ["pod"]},
    }


def redirect(body: dict[str, Any], url: str, bundle: str) -> None:
    """Point the webhooks at the local program, for objects of its namespace only."""
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE]}
    for webhook in body["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        webhook["clientConfig"] = {"url": url + path, "caBundle": bundle}
        webhook["namespaceSelector"] = {"matchExpressions": [only]}
    body["metadata"]["name"] = f"{NAME}-{body['metadata']['name']}"


def _objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the paths and objects of a queue with room for all."""
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in AMPLE.items()]
    flavors = [{"name": QUEUE, "resources": quotas}]
    groups = [{"coveredResources": list(AMPLE), "flavors": flavors}]
    queue = {"namespaceSelector": {}, "resourceGroups": groups}
    yield f"{QUEUES}/resourceflavors", _object("ResourceFlavor", {})
    yield f"{QUEUES}/clusterqueues", _object("ClusterQueue", queue)
    path = f"{QUEUES}/namespaces/{NAMESPACE}/localqueues"
    yield path, _object("LocalQueue", {"clusterQueue": QUEUE})


def _object(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": kind,
        "metadata": {"name": QUEUE},
        "spec": spec,
    }
