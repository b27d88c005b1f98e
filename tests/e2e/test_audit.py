"""The audit chain of a real Fairgate: a changed entry is named, and a loss becomes a gap."""

from __future__ import annotations

import json
from pathlib import Path

import redis
from redis.client import Pipeline

from app.devcluster.cluster import LocalCluster
from tests.support.audit_checks import anchor, audit
from tests.support.cluster_driver import Stage, pod, until

STREAM = "fairgate:{default}:audit"


def test_releases_are_on_a_chain_that_holds(stage: Stage, tmp_path: Path) -> None:
    ours = stage.namespace("audited")
    stage.apply(ours, *(pod(f"p{number}") for number in range(3)))
    until("the pods run", lambda: len(stage.running(ours)) == 3)

    done = audit(stage.cluster, "verify")

    assert done.returncode == 0, done.stderr
    assert "entries hold" in done.stdout
    copy = tmp_path / "copy.ndjson"
    assert audit(stage.cluster, "export", "--output", str(copy)).returncode == 0
    head = tmp_path / "head.json"
    signed = anchor(stage.cluster)
    head.write_text(signed)
    key = tmp_path / "audit.pub"
    key.write_text(json.loads(signed)["data"]["publicKey"])
    offline = audit(
        stage.cluster, "verify", str(copy), "--head", str(head), "--public-key", str(key)
    )
    assert offline.returncode == 0, offline.stderr
    lines = copy.read_text().splitlines(keepends=True)
    short = audit(stage.cluster, "verify", "-", "--head", str(head), stdin="".join(lines[:1]))
    assert short.returncode == 1


def falsify(stream: Pipeline) -> None:
    """Change an entry in one transaction: the controller may append others at any time."""
    rows = stream.xrange(STREAM)
    stream.multi()
    stream.delete(STREAM)
    for at, fields in rows:
        text = fields[b"entry"].replace(b'"deed":"key"', b'"deed":"held"')
        stream.xadd(STREAM, {"entry": text}, id=at)


def test_a_changed_entry_is_named_and_a_loss_becomes_a_signed_gap(
    stage: Stage, fairgate_cluster: LocalCluster
) -> None:
    url = fairgate_cluster.details().redis
    with redis.Redis.from_url(url) as server:
        number = int(server.xrange(STREAM, count=1)[0][0].partition(b"-")[0])
        server.transaction(falsify, STREAM)
        done = audit(stage.cluster, "verify")
        assert done.returncode == 1
        assert f"entry {number} does not hold" in done.stderr
        told = json.loads(audit(stage.cluster, "verify", "--output", "json").stdout)
        assert (told["holds"], told["number"]) == (False, number)

        server.flushall()
        until("the loss is named", lambda: bool(server.exists(STREAM)))
    until("the chain holds again", lambda: audit(stage.cluster, "verify").returncode == 0)
    lines = map(json.loads, audit(stage.cluster, "export").stdout.splitlines())
    first = next(each for each in lines if "number" in each)
    assert first["deed"] == "gap"
    assert first["number"] > number
