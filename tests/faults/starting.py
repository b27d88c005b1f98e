"""Starts one process of Fairgate as the local cluster would, but through cables of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from app.dev.cluster import Cluster
from app.dev.ready import free_ports
from tests.faults.cable import Cable
from tests.faults.clock import VARIABLE as CLOCK
from tests.faults.program import Program

LEASE_SECONDS = 5
"""The shortest is 3, at which a machine short of breath changes its leader by itself."""

TEST_BUILD = "tests.faults.fairgate"


def start(
    cluster: Cluster,
    role: str,
    number: int,
    to: Mapping[str, str],
    breaks: Mapping[str, str | None],
    clock: bool,
    settings: Mapping[str, object],
) -> Program:
    """Start a process; `to` has the URLs of the API server (api) and of Redis (redis).

    `breaks`: variables of the test build, which is started only if one is set, or for its `clock`.
    """
    api, redis = _cable(to["api"]), _cable(to["redis"])
    listens, ops = free_ports(2)
    mine: dict[str, object] = {
        "redis_url": f"redis://127.0.0.1:{redis.port}/0",
        "ops_listen": f"127.0.0.1:{ops}",
        "identity": f"{role}-{number}",
    }
    match role:
        case "controller":
            mine["lease_seconds"] = LEASE_SECONDS
        case _:
            mine[f"{role}_listen"] = f"127.0.0.1:{listens}"
            mine["aggregated_listen"] = ""  # one port for all would be taken
    more = {f"FAIRGATE_{name.upper()}": str(value) for name, value in (mine | settings).items()}
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


def _through(cable: Cable, kubeconfig: str, path: Path) -> str:
    document = json.loads(Path(kubeconfig).read_text())
    document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{cable.port}"
    path.touch(0o600)
    path.write_text(json.dumps(document))
    return str(path)
