"""The audit chain of a real Fairgate: it holds, a changed entry is named, a loss becomes a gap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from app.dev.cluster import Cluster
from tests.e2e.stage import Stage, pod, until

STREAM = "fairgate:{default}:audit"


def audit(stage: Stage, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FAIRGATE_REDIS_URL": stage.cluster.details().redis}
    environment["KUBECONFIG"] = str(stage.cluster.kubeconfig)
    return subprocess.run(
        [sys.executable, "-m", "app", "audit", *arguments],
        env=environment, capture_output=True, text=True, check=False, input=stdin, timeout=120,
    )  # fmt: skip


def entries(stage: Stage) -> list[dict[str, Any]]:
    lines = map(json.loads, audit(stage, "export").stdout.splitlines())
    return [each for each in lines if "number" in each]


def test_releases_are_on_a_chain_that_holds(stage: Stage, tmp_path: Path) -> None:
    ours = stage.namespace("audited")
    stage.apply(ours, *(pod(f"p{number}") for number in range(3)))
    until("the pods run", lambda: len(stage.running(ours)) == 3)

    done = audit(stage, "verify")

    assert done.returncode == 0, done.stderr
    assert "entries hold" in done.stdout
    copy = tmp_path / "copy.ndjson"
    assert audit(stage, "export", "--output", str(copy)).returncode == 0
    head = tmp_path / "head.json"
    anchor = stage.cluster.kubectl(
        "get", "configmap", "fairgate-audit", "-n", "fairgate-system", "-o", "json"
    )
    head.write_text(anchor)
    key = tmp_path / "audit.pub"
    key.write_text(json.loads(anchor)["data"]["publicKey"])
    offline = audit(stage, "verify", str(copy), "--head", str(head), "--public-key", str(key))
    assert offline.returncode == 0, offline.stderr
    lines = copy.read_text().splitlines(keepends=True)
    short = audit(stage, "verify", "-", "--head", str(head), stdin="".join(lines[:1]))
    assert short.returncode == 1


def test_a_changed_entry_is_named_and_a_loss_becomes_a_signed_gap(
    stage: Stage, fairgate_cluster: Cluster
) -> None:
    url = fairgate_cluster.details().redis
    with redis.Redis.from_url(url) as server:
        rows = server.xrange(STREAM)
        number = int(rows[0][0].partition(b"-")[0])
        server.delete(STREAM)
        for at, fields in rows:
            text = fields[b"entry"].replace(b'"deed":"key"', b'"deed":"held"')
            server.xadd(STREAM, {"entry": text}, id=at)
        done = audit(stage, "verify")
        assert done.returncode == 1
        assert f"entry {number} does not hold" in done.stderr
        told = json.loads(audit(stage, "verify", "--output", "json").stdout)
        assert (told["holds"], told["number"]) == (False, number)

        server.flushall()
        until("the loss is named", lambda: bool(server.exists(STREAM)))
    until("the chain holds again", lambda: audit(stage, "verify").returncode == 0)
    first, *_ = entries(stage)
    assert first["deed"] == "gap"
    assert first["number"] > number
