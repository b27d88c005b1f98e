"""The cluster of the measures: a local cluster with Fairgate.

Wraps the cluster of `fairgate dev`, and creates the Fairgate objects that a measure needs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.devcluster import binaries
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.fairgate_install import NAMESPACE, ROLES
from app.devcluster.nodes import GPU, NodeGroup
from app.devcluster.processes import Program
from app.devcluster.progress import SetupProgress
from app.kube.client import MERGE_PATCH, Client
from loadtest import load

NODES = NodeGroup(
    "bench-node",
    20,
    {"cpu": "256", "memory": "1024Gi", "pods": "1000", GPU: "256"},
    {"example.com/bench": "node"},
)
GPUS = 20 * 256
POOL = "bench"
EXEMPT = (
    "bench-none",
    "bench-noop",
    "bench-filtered",
    "bench-bare",
    "bench-reacted",
    "bench-kueue",
)
"""Exempt namespaces, for arms without Fairgate."""

UNPOLICIED = "bench-unpolicied"
"""A namespace to which Fairgate's webhooks apply and its admission policies do not."""

SCHEDULING = ("kube-scheduler", "kwok")
API = "/apis/fairgate.io/v1alpha1"
RULES = f"/api/v1/namespaces/{NAMESPACE}/configmaps/fairgate-enforcement"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


@contextmanager
def local_cluster(progress: SetupProgress) -> Iterator[tuple[LocalCluster, dict[str, Path]]]:
    """Bring up a cluster, yield it with its programs, and remove it completely.

    Leftovers of an earlier killed run are removed first.
    """
    for forgotten in folders.abandoned():
        LocalCluster(forgotten).down()
    found = binaries.find(progress)
    programs = {"etcd": found.etcd, "kube-apiserver": found.apiserver, "kwok": found.kwok}
    cluster = LocalCluster(folders.own_folder("bench"))
    try:
        cluster.up(ClusterOptions(groups=(NODES,), exempt=EXEMPT), progress)
        yield cluster, programs
    finally:
        with progress.step("Taking the cluster down"):
            cluster.down()


class BenchCluster:
    """A running cluster, and a client with administrator rights."""

    def __init__(self, cluster: LocalCluster, client: Client, progress: SetupProgress) -> None:
        self._cluster = cluster
        self.client = client
        self._progress = progress

    @classmethod
    @asynccontextmanager
    async def on(
        cls, cluster: LocalCluster, progress: SetupProgress
    ) -> AsyncIterator[BenchCluster]:
        """Connect a client, and yield when the leader has counted the nodes."""
        # One connection for the watch, the others for the concurrent requests of the load.
        client = await Client.connect(cluster.kubeconfig, pool_size=load.CONNECTIONS + 1)
        try:
            bench = cls(cluster, client, progress)
            spec = {"nodeSelector": NODES.labels}
            await load.create(client, f"{API}/pools", _object("Pool", POOL, spec))
            await load.until(bench.is_empty, "the leader has not counted the nodes")
            yield bench
        finally:
            await client.close()

    @property
    def folder(self) -> Path:
        """The folder of the cluster. Processes started in it end with the cluster."""
        return self._cluster.folder

    def step(self, what: str) -> AbstractContextManager[None]:
        """Report a step while the block runs."""
        return self._progress.step(what)

    async def stop_controller(self) -> None:
        """Stop the leader and the replicas that would take over."""
        await asyncio.to_thread(self._cluster.stop_fairgate, "controller")

    async def start_controller(self) -> None:
        """Start a controller. It may not be the leader yet."""
        await asyncio.to_thread(self._cluster.start_fairgate, "controller")

    async def stop_fairgate(self) -> None:
        """Stop all processes of Fairgate."""
        for role in ROLES:
            await asyncio.to_thread(self._cluster.stop_fairgate, role)

    async def start_fairgate(self) -> None:
        """Start one process of each role, and return when the leader has counted the nodes."""
        for role in ROLES:
            await asyncio.to_thread(self._cluster.start_fairgate, role)
        await load.until(self.is_empty, "the leader has not counted the nodes")

    @asynccontextmanager
    async def without_scheduler(self) -> AsyncIterator[None]:
        """Stop scheduler and nodes during the block; return when a pod runs again."""
        processes = self._cluster.processes
        children = [child for name in SCHEDULING for child in processes.alive(name)]
        await asyncio.to_thread(processes.stop, children)
        try:
            yield
        finally:
            for child in children:
                processes.start(Program(child.name, child.argv, child.environment))
        await self._runs_a_pod()

    async def _runs_a_pod(self) -> None:
        [namespace, *_] = EXEMPT
        await load.create_namespace(self.client, namespace)
        await load.create_pod(self.client, namespace, load.pod("probe", gated=False))
        path = load.pods_path(namespace, "probe")

        async def runs() -> bool:
            found = await load.read(self.client, path)
            return bool(found["status"].get("phase") == "Running")

        await load.until(runs, "no pod runs after the restart of scheduler and nodes")
        await load.clear(self.client, [namespace])

    async def set_policy(self, spec: dict[str, Any]) -> None:
        """Create the Policy. Only processes of Fairgate that start later surely use it."""
        await load.create(self.client, f"{API}/policies", _object("Policy", "default", spec))

    async def lift_policies(self) -> None:
        """Exempt `UNPOLICIED` from the admission policies; the watchdog applies the change."""
        written = (await load.read(self.client, RULES))["data"]
        rules = [each for each in yaml.safe_load_all(written["policies.yaml"]) if each]
        for each in rules:
            for found in _namespaces_left_alone(each):
                found.append(UNPOLICIED)
        body = {"data": {"policies.yaml": yaml.safe_dump_all(rules)}}
        await self.client.request("PATCH", RULES, body=body, content_type=MERGE_PATCH)
        await load.until(self._are_lifted, "the watchdog ignores the change of policies")

    async def _are_lifted(self) -> bool:
        found = (await load.read(self.client, BINDINGS))["items"]
        return all(UNPOLICIED in names for each in found for names in _namespaces_left_alone(each))

    async def create_tenant(self, namespace: str, *, paused: bool) -> None:
        """Create a tenant with the name of its only namespace; return when the leader uses it."""
        body = _object("Tenant", namespace, {"namespaces": [namespace], "paused": paused})
        await load.create(self.client, f"{API}/tenants", body)
        await load.until(lambda: self._is_in_force(namespace), "the leader ignores the tenant")

    async def hold(self, tenant: str) -> None:
        """Pause a tenant; return when the leader has applied it."""
        await self._pause(tenant, True)
        await load.until(lambda: self._is_in_force(tenant), "the leader ignores the pause")

    async def let_go(self, tenant: str) -> None:
        """Unpause a tenant; return at once."""
        await self._pause(tenant, False)

    async def has_pending(self, tenant: str, pods: int) -> bool:
        """Return whether the leader has published this number of pending pods of a tenant."""
        status = (await self._tenant(tenant)).get("status", {})
        return bool(status.get("pending") == pods)

    async def is_empty(self) -> bool:
        """Return whether the leader has published that all GPUs are free."""
        return await self._has_free(GPUS)

    async def is_full(self) -> bool:
        """Return whether the leader has published that no GPU is free."""
        return await self._has_free(0)

    @property
    def api(self) -> tuple[str, ssl.SSLContext]:
        """The URL of Fairgate's REST API, and a TLS context that trusts its CA."""
        details = self._cluster.details()
        return str(details.api), ssl.create_default_context(cafile=details.ca)

    async def token(self, namespace: str, account: str) -> str:
        """Create a service account; return its token with the audience of Fairgate."""
        where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        await load.create(self.client, where, {"metadata": {"name": account}})
        body = {"spec": {"audiences": ["fairgate"]}}
        made = await self.client.request("POST", f"{where}/{account}/token", body=body)
        return str(msgspec.json.decode(made)["status"]["token"])

    async def _has_free(self, gpus: int) -> bool:
        found = await load.read(self.client, f"{API}/pools/{POOL}")
        free = found.get("status", {}).get("free", {})
        return bool(free.get(GPU) == str(gpus))

    async def _pause(self, tenant: str, paused: bool) -> None:
        await self.client.request(
            "PATCH",
            f"{API}/tenants/{tenant}",
            body={"spec": {"paused": paused}},
            content_type=MERGE_PATCH,
        )

    async def _is_in_force(self, tenant: str) -> bool:
        """Return whether the leader has published the current generation of the tenant."""
        found = await self._tenant(tenant)
        observed = found.get("status", {}).get("observedGeneration")
        return bool(observed == found["metadata"]["generation"])

    async def _tenant(self, tenant: str) -> dict[str, Any]:
        return await load.read(self.client, f"{API}/tenants/{tenant}")


def _namespaces_left_alone(rule: dict[str, Any]) -> list[list[str]]:
    selector = rule["spec"].get("matchResources", {}).get("namespaceSelector", {})
    return [each["values"] for each in selector.get("matchExpressions", ())]


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
