"""The local cluster works, and leaves no process behind, however its run ended."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.errors import ClusterError, InvalidInput
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.go_build import SOURCE
from app.devcluster.processes import ChildProcess, Processes, is_alive

SMALL = ClusterOptions(nodes=1, fairgate=False)
PROGRAMS = {
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "redis",
}


@pytest.fixture
def own(tmp_path: Path, cluster_tools: Tools) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster")
    yield cluster
    cluster.down()


def bring_up(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "app", "dev", "up", "--nodes", "1", "--no-fairgate"]
    return subprocess.Popen(
        [*command, "--dir", str(folder)],
        cwd=SOURCE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def started(folder: Path, name: str) -> list[ChildProcess]:
    """Wait until a process of this name is recorded; return all recorded processes."""
    until(lambda: any(child.name == name for child in Processes(folder).recorded()))
    return Processes(folder).recorded()


def pod(name: str, runtime: str | None = None) -> str:
    annotations = {"kwok.fairgate.dev/runtime": runtime} if runtime else {}
    container = {"name": "c", "image": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
    )


def await_phase(cluster: LocalCluster, name: str, phase: str) -> None:
    condition = f"--for=jsonpath={{.status.phase}}={phase}"
    cluster.kubectl("wait", condition, f"pod/{name}", "--timeout=30s")


def accept_one(server: socket.socket, context: ssl.SSLContext) -> object:
    connection, _ = server.accept()
    with connection, context.wrap_socket(connection, server_side=True) as secured:
        return (secured.getpeercert() or {})["subject"]


def ask(cluster: LocalCluster) -> bool:
    """Make the API server call the webhook. The webhook's answer does not matter."""
    cluster.kubectl("create", "configmap", "probe", "--dry-run=server")
    return True


def probe_webhook(port: int, ca: str) -> str:
    client = {"url": f"https://127.0.0.1:{port}/", "caBundle": ca}
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["configmaps"],
    }
    webhook = {
        "name": "probe.fairgate.io",
        "clientConfig": client,
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
    }
    return json.dumps(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "probe"},
            "webhooks": [webhook],
        }
    )


def test_nodes_are_ready_and_offer_gpus(cluster: LocalCluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["gpu-node-0", "gpu-node-1"]
    for node in nodes:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


def test_pod_without_runtime_runs_on_until_deleted(cluster: LocalCluster) -> None:
    cluster.kubectl("create", "-f", "-", stdin=pod("endless"))
    await_phase(cluster, "endless", "Running")
    assert cluster.kubectl("get", "pod", "endless", "-o", "jsonpath={.spec.nodeName}")
    cluster.kubectl("delete", "pod", "endless", "--timeout=20s")


def test_pod_with_runtime_succeeds(cluster: LocalCluster) -> None:
    cluster.kubectl("create", "-f", "-", stdin=pod("brief", "1s"))
    await_phase(cluster, "brief", "Succeeded")
    cluster.kubectl("delete", "pod", "brief")


def test_kubectl_error_message_is_in_the_exception(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match='namespaces "nowhere" not found'):
        cluster.kubectl("get", "namespace", "nowhere")


def test_user_is_known_by_name_and_group_and_has_no_right(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "alice"
    kubeconfig.write_text(cluster.create_user("alice", ["team-a"]))
    asked = json.loads(
        cluster.kubectl("--kubeconfig", str(kubeconfig), "auth", "whoami", "-o", "json")
    )
    assert asked["status"]["userInfo"]["username"] == "alice"
    assert "team-a" in asked["status"]["userInfo"]["groups"]
    with pytest.raises(ClusterError, match=r"alice.* cannot list resource"):
        cluster.kubectl("--kubeconfig", str(kubeconfig), "get", "pods")


def test_writes_to_pods_are_in_the_audit_log(cluster: LocalCluster) -> None:
    cluster.kubectl("create", "-f", "-", stdin=pod("audited"))
    cluster.kubectl("delete", "pod", "audited")

    def verbs() -> set[str]:
        entries = [json.loads(line) for line in cluster.audit_log.read_text().splitlines()]
        ours = [e for e in entries if e["objectRef"].get("name") == "audited"]
        return {entry["verb"] for entry in ours}

    until(lambda: {"create", "delete"} <= verbs())


def test_api_server_authenticates_to_webhooks_with_its_certificate(cluster: LocalCluster) -> None:
    """A webhook that trusts only the webhook client CA can authenticate the API server."""
    pki = cluster.folder / "pki"
    inside = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "webhook-client-ca.crt")
    )
    inside.load_cert_chain(pki / "kube-apiserver.crt", pki / "kube-apiserver.key")
    inside.verify_mode = ssl.CERT_REQUIRED
    inside.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        server.settimeout(30)
        caller = pool.submit(accept_one, server, inside)
        ca = base64.b64encode((pki / "cluster-ca.crt").read_bytes()).decode()
        cluster.kubectl("create", "-f", "-", stdin=probe_webhook(server.getsockname()[1], ca))
        try:
            until(lambda: ask(cluster) and caller.done())
        finally:
            cluster.kubectl("delete", "mutatingwebhookconfiguration", "probe")
        assert caller.result() == ((("commonName", "kube-apiserver-webhook-client"),),)


def test_up_cleans_up_after_a_killed_run_and_down_leaves_no_process(own: LocalCluster) -> None:
    run = bring_up(own.folder)
    started(own.folder, "kube-apiserver")
    run.kill()
    run.communicate()
    leftovers = own.processes.recorded()
    assert any(map(is_alive, leftovers))
    first = own.up(SMALL)
    assert not any(map(is_alive, leftovers))
    assert set(first.pids) == PROGRAMS

    assert own.up(SMALL) == first, "a second up keeps the cluster"
    with pytest.raises(InvalidInput, match="other options"):
        own.up(ClusterOptions(nodes=2, fairgate=False))

    os.kill(first.pids["kwok"][0], signal.SIGKILL)
    until(lambda: (own.status() or (None, []))[1] == ["kwok"])

    children = own.processes.recorded()
    assert own.down()
    assert not any(map(is_alive, children))
    assert not own.folder.exists()
    assert own.status() is None


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupted_up_stops_its_processes(own: LocalCluster, sign: int) -> None:
    run = bring_up(own.folder)
    children = started(own.folder, "etcd")
    run.send_signal(sign)
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert not any(map(is_alive, children))
    assert not own.folder.exists()


def test_folder_with_other_files_is_refused_and_unchanged(
    tmp_path: Path, cluster_tools: Tools
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    cluster = LocalCluster(tmp_path)
    with pytest.raises(InvalidInput, match="not empty"):
        cluster.up(SMALL)
    assert not cluster.down()
    assert (tmp_path / "thesis.tex").read_text() == "precious"
