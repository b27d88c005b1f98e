"""Usage on a real cluster: exact across a restart and readable over REST, like the audit chain."""

from __future__ import annotations

import csv
import io
import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.support.audit_checks import audit
from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod, until

VERIFIER = Path(__file__).parents[2] / "docs" / "examples" / "verify_audit.py"
SLACK = 2.0
"""Seconds of tolerance for late watches and for times in whole seconds."""

ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "e2e-auditor"},
    "rules": [
        {"apiGroups": ["fairgate.io"], "resources": ["tenants/usage"], "verbs": ["get"]},
        {"apiGroups": ["fairgate.io"], "resources": ["audit", "quotas"], "verbs": ["get"]},
    ],
}


@dataclass
class Reader:
    """A caller with the rights of an auditor."""

    stage: Stage
    token: str

    def read(self, path: str) -> str:
        details = self.stage.cluster.details()
        request = urllib.request.Request(
            f"{details.api}{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        context = ssl.create_default_context(cafile=details.ca)
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return str(answer.read().decode())

    def seconds(self, query: str) -> dict[tuple[str, ...], float]:
        """Return the GPU-seconds by the names of each row."""
        found = json.loads(self.read(f"/v1/usage?limit=500&{query}"))
        return {
            tuple(v for k, v in row.items() if k != "resourceSeconds"): float(
                row["resourceSeconds"][GPU]
            )
            for row in found["items"]
            if GPU in row["resourceSeconds"]  # others are pods of earlier tests
        }


def auditor(stage: Stage, namespace: str) -> Reader:
    stage.apply("default", ROLE)
    account = f"--serviceaccount={namespace}:default"
    kubectl = stage.cluster.kubectl
    kubectl("create", "clusterrolebinding", "e2e-auditor", "--clusterrole=e2e-auditor", account)
    stage.objects += [("clusterrole", "e2e-auditor"), ("clusterrolebinding", "e2e-auditor")]
    token = kubectl("create", "token", "default", "-n", namespace, "--audience=fairgate").strip()
    reader = Reader(stage, token)

    def is_let_in() -> bool:
        try:
            reader.read("/v1/usage")
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    until("RBAC lets it in", is_let_in)
    return reader


@dataclass
class Life:
    """Bounds of the times at which a pod's usage began and ended."""

    began: tuple[float, float]
    ended: tuple[float, float] = (0.0, 0.0)

    def span(self) -> tuple[float, float]:
        return self.ended[0] - self.began[1], self.ended[1] - self.began[0]


def time_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def lives(pods: list[Object]) -> dict[str, Life]:
    return {
        name_of(each): Life(
            (
                time_of(each["metadata"]["creationTimestamp"]) - SLACK,
                time_of(each["status"]["startTime"]) + SLACK,
            )
        )
        for each in pods
    }


def test_usage_equals_pod_lifetimes_after_the_controller_was_killed(
    stage: Stage, tmp_path: Path
) -> None:
    ours, others = stage.namespace("billed"), stage.namespace("others")
    stage.tenant("billed", "1", ours)
    reader = auditor(stage, others)
    began = datetime.now().astimezone().isoformat(timespec="seconds").replace("+", "%2B")
    gpus = 2
    stage.apply(ours, *(pod(f"p{number}", gpus) for number in range(4)))
    stage.apply(others, *(pod(f"q{number}", gpus) for number in range(2)))
    until("all run", lambda: len(stage.running(ours) + stage.running(others)) == 6)
    known = {**lives(stage.pods(ours)), **lives(stage.pods(others))}
    ran = {f"{ours}/p{number}" for number in range(4)} | {f"{others}/q0", f"{others}/q1"}
    # Pods of an earlier test may have ended within the second in which this one began.
    told = lambda: {name for (name,) in reader.seconds(f"by=workload&from={began}")}  # noqa: E731
    until("it is told", lambda: ran <= told())

    def delete(namespace: str, name: str) -> None:
        before = time.time()
        stage.delete(namespace, name)
        known[name].ended = (before - SLACK, time.time() + SLACK)

    delete(ours, "p0")

    def usage_of_p0() -> float:
        return reader.seconds(f"by=workload&from={began}")[(f"{ours}/p0",)]

    def p0_has_ended() -> bool:
        """Return whether its usage no longer grows: the leader gathers changes before a write."""
        before = usage_of_p0()
        return usage_of_p0() == before

    until("its end is recorded", p0_has_ended)
    stage.cluster.stop_fairgate("controller", signal.SIGKILL)
    delete(ours, "p1")
    stage.cluster.start_fairgate("controller")
    stage.apply(ours, pod("p4", gpus))
    until("the next one leads", lambda: "p4" in stage.running(ours))
    known["p1"].ended = (known["p1"].ended[0], time.time() + SLACK)  # no watch saw it
    known |= lives([each for each in stage.pods(ours) if name_of(each) == "p4"])
    for name in ("p2", "p3", "p4"):
        delete(ours, name)
    for name in ("q0", "q1"):
        delete(others, name)
    until("nothing goes on", lambda: not running(stage))

    def all_have_ended() -> bool:
        """Return whether no usage grows: the leader records an end after the pod is gone."""
        before = reader.seconds(f"by=workload&from={began}")
        return reader.seconds(f"by=workload&from={began}") == before

    until("all ends are recorded", all_have_ended)
    found = reader.seconds(f"by=workload&from={began}")
    for name, life in known.items():
        namespace = ours if name.startswith("p") else others
        least, most = life.span()
        used = found[(f"{namespace}/{name}",)]
        print(f"{name}: {used:.3f} GPU-seconds, from {gpus * least:.1f} to {gpus * most:.1f}")
        assert gpus * least <= used <= gpus * most

    total = round(sum(found.values()), 3)
    for by in ("tenant", "user", "pool", "node", "tenant,node"):
        sums = reader.seconds(f"by={by}&from={began}")
        assert round(sum(sums.values()), 3) == total, by
    table = reader.read(f"/v1/usage?by=tenant,node&from={began}&format=csv")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert round(sum(float(row[GPU]) for row in rows), 3) == total
    mine = [row for row in rows if row["tenant"] == "billed"]
    theirs = json.loads(reader.read(f"/v1/usage?tenant=billed&from={began}"))["items"]
    assert [row["tenant"] for row in theirs] == ["billed"]
    mine_in_all = round(sum(float(row[GPU]) for row in mine), 3)
    assert float(theirs[0]["resourceSeconds"][GPU]) == mine_in_all


def running(stage: Stage) -> bool:
    return any(stage.using(namespace) for namespace in stage.namespaces)


def test_auditor_can_verify_the_chain_and_read_earlier_quotas(stage: Stage, tmp_path: Path) -> None:
    ours = stage.namespace("judged")
    quotas = [{"pool": "default", "guarantee": {GPU: 4}, "limit": {GPU: 8}}]
    stage.tenant("judged", "2", ours, quotas=quotas)
    reader = auditor(stage, ours)
    stage.apply(ours, pod("p"))
    until("it runs", lambda: stage.running(ours) == ["p"])
    until("its release is told", lambda: '"deed":"released"' in reader.read("/v1/audit"))
    before = datetime.now().astimezone().isoformat().replace("+", "%2B")
    stage.tenant("judged", "3", ours)

    def weight(query: str) -> list[tuple[str, object]]:
        rows = json.loads(reader.read(f"/v1/quotas?limit=500{query}"))["items"]
        return [(row["weight"], row["guarantee"]) for row in rows if row["tenant"] == "judged"]

    until("it is three", lambda: weight("")[0][0] == "3")
    until("the chain tells", lambda: weight(f"&at={before}") == [("2", {GPU: "4"})])

    (tmp_path / "audit.ndjson").write_text(reader.read("/v1/audit"))
    head = json.loads(reader.read("/v1/audit/head"))
    (tmp_path / "head.json").write_text(head["signed"])
    files = (str(tmp_path / "audit.ndjson"), "--head", str(tmp_path / "head.json"))
    assert audit(stage.cluster, "verify", *files[:1]).returncode == 0
    done = audit(stage.cluster, "verify", *files)
    # The head is newer than the export, so entries between them are missing from the export.
    exported = json.loads((tmp_path / "audit.ndjson").read_text().splitlines()[-1])["head"]
    assert (done.returncode == 0) == (exported["number"] >= head["number"]), done.stderr
    (tmp_path / "audit.pub").write_text(json.loads(head["signed"])["publicKey"])

    def holds() -> bool:
        """Return whether the verifier of the docs accepts a new export, whose end is signed."""
        (tmp_path / "chain").write_text(reader.read("/v1/audit"))
        command = [
            sys.executable,
            str(VERIFIER),
            str(tmp_path / "chain"),
            str(tmp_path / "audit.pub"),
        ]
        return subprocess.run(command, check=False).returncode == 0

    until("the independent verifier accepts the chain", holds)
    mine = reader.read("/v1/audit?tenant=judged").splitlines()
    assert {json.loads(text)["deed"] for text in mine} >= {"held", "released", "changed"}
