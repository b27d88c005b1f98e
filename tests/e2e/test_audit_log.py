"""The audit chain agrees with the API server's audit log, also when processes are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from tests.faults.audit_log import compare
from tests.support.audit_entries import Entry, entries
from tests.support.cluster_driver import Stage, pod, until
from tests.support.manual_release import bind, release

UNGATE = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
DEVICES = 16
ADMIN = "fairgate-dev-admin"


@pytest.fixture(scope="module")
def watched(cluster_tools: Tools) -> Iterator[LocalCluster]:
    """A cluster with an API server that logs requests and responses with their bodies."""
    cluster = LocalCluster(folders.own_folder("audited"))
    try:
        lease = {"FAIRGATE_LEASE_SECONDS": "3"}
        cluster.up(ClusterOptions(nodes=2, fairgate=False, bodies=True, environment=lease))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def stage(watched: LocalCluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(watched, folder=tmp_path)
    try:
        yield stage
    finally:
        stage.clear()


def told(cluster: LocalCluster, entry_type: str, **facts: object) -> list[Entry]:
    """Return the entries of this type with these facts."""
    return [
        entry
        for entry in entries(cluster)
        if entry["deed"] == entry_type and facts.items() <= entry["facts"].items()
    ]


def disagreements(cluster: LocalCluster, *, unsigned: bool = False) -> list[str]:
    return compare(cluster.folder / "logs" / "audit.log", entries(cluster), unsigned=unsigned)


def agree(cluster: LocalCluster) -> None:
    """Wait for agreement: entries are sealed a moment after the recorded action."""
    until("the chain and the log agree", lambda: not disagreements(cluster))


def test_the_chain_and_the_api_servers_audit_log_agree(stage: Stage) -> None:
    cluster, ours = stage.cluster, stage.namespace("audited")
    alice = stage.as_user("alice", ours)
    stage.tenant("team", "2", ours, maxPending=6)
    held = [f"p{number}" for number in range(DEVICES + 4)]
    for name in held:
        alice.run("apply", "-n", ours, "-f", "-", stdin=json.dumps(pod(name)))
    until("what fits is released", lambda: len(stage.using(ours)) == DEVICES)
    waiting = stage.held(ours)

    bind(cluster, "olga")
    stage.objects.append(("clusterrolebinding", "operator-olga"))
    assert release(cluster, "olga", stage.folder, waiting[0], "-n", ours, "--yes").returncode == 0
    cluster.kubectl("patch", "pod", waiting[1], "-n", ours, "--type=json", "-p", UNGATE)
    bound = pod("bound", nodeName="gpu-node-0")
    with pytest.raises(ClusterError, match=r"spec\.nodeName"):
        alice.run("apply", "-n", ours, "-f", "-", stdin=json.dumps(bound))
    cluster.kubectl("patch", "tenant", "team", "--type=merge", "-p", '{"spec": {"weight": "5"}}')

    def changes() -> list[Entry]:
        return told(cluster, "changed", name="team", did="changed")

    until("the refusal is told", lambda: bool(told(cluster, "refused", user="alice")))
    until("the change is told", lambda: bool(changes()))
    until("the bypass is told", lambda: bool(told(cluster, "bypassed")))
    agree(cluster)
    uids = {p["metadata"]["name"]: p["metadata"]["uid"] for p in stage.pods(ours)}
    [by_hand] = told(cluster, "released", byHand=True)
    assert (by_hand["facts"]["uid"], by_hand["facts"]["by"]) == (uids[waiting[0]], "olga")
    [bypassed] = told(cluster, "bypassed")
    assert (bypassed["facts"]["uid"], bypassed["facts"]["by"]) == (uids[waiting[1]], ADMIN)
    [refused] = told(cluster, "refused", user="alice")
    assert (refused["facts"]["namespace"], refused["facts"]["count"]) == (ours, 1)
    assert "spec.nodeName" in refused["facts"]["why"]
    changed = changes()[-1]["facts"]
    assert changed["by"] == ADMIN
    assert changed["fields"] == {"weight": {"before": "2", "after": "5"}}
    assert len(told(cluster, "held", user="alice")) == len(held)


def test_each_release_is_recorded_once_if_leaders_are_killed(stage: Stage) -> None:
    cluster, ours = stage.cluster, stage.namespace("killed")
    for turn in range(3):
        names = [f"p{turn}-{number}" for number in range(DEVICES)]
        stage.apply(ours, *(pod(name) for name in names))
        until("some are released", lambda: bool(stage.using(ours)))
        cluster.stop_fairgate("controller", signal.SIGKILL)
        late = f"late-{turn}"
        stage.apply(ours, pod(late))  # maybe before others: creation times are whole seconds
        patch = json.dumps({"spec": {"minRuntime": f"{turn + 1}m"}})
        kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy"}
        stage.apply("default", {**kind, "metadata": {"name": "default"}, **json.loads(patch)})
        cluster.start_fairgate("controller")
        until("all is released", lambda: len(stage.using(ours)) == DEVICES)
        agree(cluster)
        until("it is told", lambda name=late: bool(told(cluster, "held", pod=name)))  # type: ignore[misc]
        last = told(cluster, "changed", kind="Policy")[-1]["facts"]
        assert (last["by"], last["fields"]["minRuntime"]["after"]) == (ADMIN, f"{60 * (turn + 1)}s")
        stage.delete(ours, *(p["metadata"]["name"] for p in stage.pods(ours)))
        until("it is empty", lambda: not stage.pods(ours))
    cluster.kubectl("delete", "policy", "default")
    for name in {entry["facts"].get("uid") for entry in told(cluster, "held")}:
        assert len(told(cluster, "held", uid=name)) == 1
    agree(cluster)


def test_comparison_reports_a_missing_repeated_or_changed_entry(stage: Stage) -> None:
    """The comparison reports exactly the entry that was removed, changed or repeated."""
    cluster, ours = stage.cluster, stage.namespace("lacking")
    stage.apply(ours, pod("p"))
    until("it is released", lambda: bool(stage.using(ours)))
    agree(cluster)
    known, log = entries(cluster), cluster.folder / "logs" / "audit.log"
    one = next(entry for entry in reversed(known) if entry["deed"] == "released")
    others = [entry for entry in known if entry is not one]
    uid = one["facts"]["uid"]
    for false in (
        others,
        [*known, one],
        [*others, {**one, "facts": {**one["facts"], "stamp": "9.9"}}],
        [*others, {**one, "facts": {**one["facts"], "byHand": True, "by": "mallory"}}],
    ):
        assert [said for said in compare(log, false) if uid in said]


def test_without_the_webhook_a_change_is_nobodys_and_no_name_can_be_forged(stage: Stage) -> None:
    cluster = stage.cluster
    stage.tenant("signed", "1")
    until("it is told", lambda: bool(told(cluster, "changed", name="signed", by=ADMIN)))
    cluster.stop_fairgate("webhook", signal.SIGKILL)
    try:
        stage.tenant("signed", "7")
        until("it is told", lambda: bool(told(cluster, "changed", name="signed", did="changed")))
        last = told(cluster, "changed", name="signed")[-1]["facts"]
        assert (last["by"], last["fields"]["weight"]["after"]) == ("unknown", "7")
        forged = {"metadata": {"annotations": {"fairgate.io/changed-by": "mallory"}}}
        with pytest.raises(ClusterError, match="names whoever makes the change"):
            cluster.kubectl("patch", "tenant", "signed", "--type=merge", "-p", json.dumps(forged))
    finally:
        cluster.start_fairgate("webhook")
    assert any("by unknown" in said for said in disagreements(cluster))
    assert disagreements(cluster, unsigned=True) == []
