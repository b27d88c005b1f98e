"""`fairgate dev` prints the addresses of a local cluster."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from app.cli.devcluster import _print_text
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import Details


def test_addresses_are_printed_in_full_without_a_terminal(tmp_path: Path) -> None:
    out = StringIO()
    redis = f"redis://:{'x' * 90}@127.0.0.1:36379/0"
    details = Details("/a/kubeconfig", "/b/kubectl", None, None, None, redis, {"etcd": [1, 2]})
    _print_text(Console(file=out, width=40), LocalCluster(tmp_path), details)
    rows = [row.split() for row in out.getvalue().splitlines()]
    assert ["Redis", redis] in rows
    assert ["etcd", "pid", "1,", "2"] in rows
