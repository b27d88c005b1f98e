"""Starts one process of Fairgate as the local cluster would, but behind its own proxies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from app.devcluster.cluster import LocalCluster
from app.devcluster.readiness import free_ports
from tests.faults.clock import VARIABLE as CLOCK
from tests.faults.program import Program
from tests.faults.tcp_proxy import Cable

LEASE_SECONDS = 5
"""The minimum is 3, with which an overloaded machine changes its leader by itself."""

TEST_BUILD = "tests.faults.fairgate"


def start(
    cluster: LocalCluster,
    role: str,
    number: int,
    to: Mapping[str, str],
    breaks: Mapping[str, str | None],
    clock: bool,
    settings: Mapping[str, object],
) -> Program:
    """Start a process. `to` has the URLs of the API server (api) and of Redis (redis).

    `breaks` are variables of the test build, which is started only with these or with a `clock`.
    """
    api, redis = _cable(to["api"]), _cable(to["redis"])
    listens, ops = free_ports(2)
    mine: dict[str, object] = {
        "redis_url": _by_cable(to["redis"], redis),
        "ops_listen": f"127.0.0.1:{ops}",
        "identity": f"{role}-{number}",
    }
    match role:
        case "controller":
            mine["lease_seconds"] = LEASE_SECONDS
        case _:
            mine[f"{role}_listen"] = f"127.0.0.1:{listens}"
            mine["aggregated_listen"] = ""  # a fixed port would already be in use
    more = {f"FAIRGATE_{name.upper()}": str(value) for name, value in {**mine, **settings}.items()}
    more |= {name: value for name, value in breaks.items() if value}
    if clock:
        more[CLOCK] = str(cluster.folder / f"clock-{number}")
    usual = cluster.fairgate().program(role, to["redis"], more)
    environment = dict(usual.environment)
    environment["FAIRGATE_KUBECONFIG"] = _through(
        api, environment["FAIRGATE_KUBECONFIG"], cluster.folder / f"{role}-{number}.kubeconfig"
    )
    module = TEST_BUILD if clock or any(breaks.values()) else "app"
    argv = tuple(module if part == "app" else part for part in usual.argv)
    ours = replace(usual, name=f"{usual.name}-{number}", argv=argv, environment=environment)
    process = cluster.processes.start(ours)
    return Program(role, process, cluster.processes, api, redis, listens)


def _cable(url: str) -> Cable:
    to = urlsplit(url)
    return Cable(to.hostname or "", to.port or 0).__enter__()


def _by_cable(url: str, cable: Cable) -> str:
    """Return the URL of the same Redis through a proxy, password included."""
    to = urlsplit(url)
    caller = to.netloc.rpartition("@")[0]
    where = f"127.0.0.1:{cable.port}"
    return to._replace(netloc=f"{caller}@{where}" if caller else where).geturl()


def _through(cable: Cable, kubeconfig: str, path: Path) -> str:
    document = json.loads(Path(kubeconfig).read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{cable.port}"
    path.touch(0o600)
    path.write_text(json.dumps(document))
    return str(path)
