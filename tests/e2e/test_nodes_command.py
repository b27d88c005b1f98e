"""`fairgate nodes check` and `label` on a real API server, with the users that would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod, until
from tests.support.documented_lines import commands
from tests.support.terminal import terminal_on

PRODUCT = "nvidia.com/gpu.product"
GKE = "cloud.google.com/gke-accelerator"
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110"}

Done = subprocess.CompletedProcess[str]


def node(name: str, gpus: int = 4, notes: dict[str, str] | None = None, **labels: str) -> Object:
    offer = {**ROOM, GPU: str(gpus)} if gpus else ROOM
    meta = {"name": name, "labels": {"type": "kwok", **labels}, "annotations": notes or {}}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "status": {"capacity": offer, "allocatable": offer},
    }


def pool(name: str, **selector: str) -> Object:
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": name},
        "spec": {"nodeSelector": selector, "paused": True},
    }


class Nodes:
    """Runs the command with the kubeconfig of one user."""

    def __init__(self, stage: Stage, kubeconfig: Path) -> None:
        self.stage = stage
        self._kubeconfig = kubeconfig

    def put(self, *objects: Object) -> None:
        self.stage.apply("default", *objects)
        self.stage.objects += [(each["kind"].lower(), name_of(each)) for each in objects]

    def run(self, *args: str) -> Done:
        return subprocess.run(
            [sys.executable, "-m", "app", "nodes", *args, "--kubeconfig", str(self._kubeconfig)],
            stdin=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("FAIRGATE_")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def found(self) -> dict[tuple[str, str], Object]:
        """Return the findings of `check`, by node and kind."""
        told = json.loads(self.run("check", "--output", "json").stdout)
        return {(each["node"], each["trouble"]): each for each in told["findings"]}

    def labels(self) -> dict[str, dict[str, str]]:
        items = self.stage.get("nodes")["items"]
        return {name_of(item): item["metadata"].get("labels", {}) for item in items}


@pytest.fixture
def nodes(stage: Stage) -> Iterator[Nodes]:
    before = {name_of(item) for item in stage.get("nodes")["items"]}
    yield Nodes(stage, stage.cluster.kubeconfig)
    for name in {name_of(item) for item in stage.get("nodes")["items"]} - before:
        stage.cluster.kubectl("delete", "node", name, "--ignore-not-found")


def test_check_reports_a_cluster_without_findings(nodes: Nodes) -> None:
    done = nodes.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "8 nodes with GPUs, of 8; none with findings."


def test_check_reports_nodes_without_the_label_without_changing_them(nodes: Nodes) -> None:
    nodes.put(node("plain"), node("of-gke", **{GKE: "nvidia-tesla-t4"}), node("no-gpu", 0))
    before = nodes.labels()
    done = nodes.run("check")
    assert done.returncode == 1
    assert (
        f"node of-gke: advertises {GPU} without label {PRODUCT}: it is Tesla-T4 by label "
        f"{GKE}=nvidia-tesla-t4; fairgate nodes label of-gke." in done.stdout.splitlines()
    )
    assert "10 nodes with GPUs, of 11; 2 with findings." in done.stdout
    found = nodes.found()
    assert set(found) == {("plain", "unlabelled"), ("of-gke", "unlabelled")}
    assert (found["plain", "unlabelled"]["product"], found["of-gke", "unlabelled"]["product"]) == (
        "", "Tesla-T4",
    )  # fmt: skip
    assert nodes.labels() == before


def test_documented_node_commands_print_the_documented_output(nodes: Nodes, tmp_path: Path) -> None:
    nodes.put(node("plain"), node("of-gke", **{GKE: "nvidia-tesla-t4"}), node("no-gpu", 0))
    terminal = terminal_on(nodes.stage.cluster, tmp_path)
    check, code, label = commands("docs/placement.md", "## Nodes with GPUs")
    terminal.show(check, code=1, varies="nodes in no pool run pods which use cpu")
    assert terminal.run(f"(exit 1); {code.text}") == code.output
    terminal.show(label)
    terminal.close()


def test_label_adds_missing_labels_and_keeps_existing_ones(nodes: Nodes) -> None:
    hami = "GPU-1,10,32768,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true:"
    nodes.put(
        node("plain"),
        node("noted", notes={"hami.io/node-nvidia-register": hami}),
        node("mine", **{PRODUCT: "my-own-word", GKE: "nvidia-tesla-t4"}),
    )
    before = nodes.labels()
    looked = nodes.run("label", "--dry-run", "--product", "NVIDIA-L4")
    assert looked.returncode == 0
    assert looked.stdout.splitlines() == [
        f"noted: {PRODUCT}=NVIDIA-A100-SXM4-40GB (the device plugin's annotation)",
        f"plain: {PRODUCT}=NVIDIA-L4 (--product)",
        "2 nodes would be labelled.",
    ]
    unasked = nodes.run("label")
    assert unasked.returncode == 2
    assert "add --yes" in unasked.stderr
    assert nodes.labels() == before

    some = nodes.run("label", "--yes")
    assert some.returncode == 1
    assert "node plain: its GPU model is unknown; add --product NAME." in some.stderr
    rest = nodes.run("label", "--yes", "--product", "NVIDIA-L4", "--output", "json")
    assert rest.returncode == 0
    [change] = json.loads(rest.stdout)["changes"]
    assert (change["node"], change["value"], change["result"]) == (
        "plain", "NVIDIA-L4", "labelled",
    )  # fmt: skip
    products = {name: labels.get(PRODUCT) for name, labels in nodes.labels().items()}
    assert {name: products[name] for name in ("plain", "noted", "mine")} == {
        "plain": "NVIDIA-L4",
        "noted": "NVIDIA-A100-SXM4-40GB",
        "mine": "my-own-word",
    }
    again = nodes.run("label", "--yes", "--product", "Other")
    assert (again.returncode, again.stdout) == (0, "Nothing to label.\n")


def test_check_compares_nodes_with_pools(nodes: Nodes) -> None:
    t4 = {PRODUCT: "Tesla-T4"}
    nodes.put(
        node("t4-0", rack="a", **t4),
        node("t4-1", rack="a", **t4),
        node("l4-0", rack="a", **{PRODUCT: "NVIDIA-L4"}),
        node("t4-2", rack="b", **t4),
        node("dead", 0, **t4),
        pool("rack-a", rack="a"),
        pool("t4s", rack="a", **t4),
    )
    found = nodes.found()
    ours = {key: each for key, each in found.items() if not key[0].startswith("gpu-node-")}
    assert set(ours) == {
        ("t4-0", "overlap"), ("t4-1", "overlap"), ("l4-0", "odd"),
        ("t4-2", "no-pool"), ("dead", "silent"),
    }  # fmt: skip
    assert ours["t4-0", "overlap"]["pools"] == ["rack-a", "t4s"]
    assert "pool rack-a, the nearest, wants rack=a (it has b)" in ours["t4-2", "no-pool"]["message"]
    assert {key[1] for key in found if key[0].startswith("gpu-node-")} == {"no-pool"}


def test_pods_without_devices_on_such_nodes_are_counted_but_not_those_of_daemonsets(
    nodes: Nodes,
) -> None:
    ours = nodes.stage.namespace("bystanders")
    daemon = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "logs"},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}},
            "template": {
                "metadata": {"labels": {"app": "x"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    }
    nodes.stage.apply(ours, pod("web-0", 0), pod("web-1", 0), pod("train", 1), daemon)
    until("the pods run", lambda: {"web-0", "web-1", "train"} <= set(nodes.stage.running(ours)))
    until("all run", lambda: len(nodes.stage.running(ours)) == 3 + 8)
    done = nodes.run("check", "--output", "json")
    assert done.returncode == 0, "it is told, and is no finding"
    [crowd] = json.loads(done.stdout)["others"]
    assert (crowd["pool"], crowd["pods"], crowd["room"]["cpu"]) == ("", 2, "2")
    assert crowd["names"] == ["bystanders/web-0", "bystanders/web-1"]


def test_missing_rights_are_reported_and_no_label_is_changed(nodes: Nodes) -> None:
    stage = nodes.stage
    nodes.put(node("plain"))
    kubeconfig = stage.folder / "reader.kubeconfig"
    kubeconfig.write_text(stage.cluster.create_user("reader"))
    reader = Nodes(stage, kubeconfig)
    refused = reader.run("check")
    assert refused.returncode == 1
    assert "nodes" in refused.stderr
    stage.cluster.kubectl("create", "clusterrole", "see-nodes", "--verb=list", "--resource=nodes")
    stage.cluster.kubectl(
        "create", "clusterrolebinding", "see-nodes", "--clusterrole=see-nodes", "--user=reader"
    )
    stage.objects += [("clusterrolebinding", "see-nodes"), ("clusterrole", "see-nodes")]
    tried = reader.run("label", "--yes", "--product", "NVIDIA-L4")
    assert tried.returncode == 1
    assert "forbidden" in tried.stderr
    assert PRODUCT not in nodes.labels()["plain"]


def test_invalid_arguments_are_reported(nodes: Nodes) -> None:
    unheard = nodes.run("label", "nowhere", "--yes")
    assert (unheard.returncode, "There is no node nowhere" in unheard.stderr) == (2, True)
    bad = nodes.run("label", "--product", "a b")
    assert (bad.returncode, "cannot be the value of a label" in bad.stderr) == (2, True)
