"""The Philly window on a cluster and in the simulator: the same jobs, users, times and policy.

`python -m tests.faults.philly_window`. It starts with an empty cluster, by default with all of P4
in 29 minutes. The same users must starve, each user's usage must agree within 10 %, and the
observer must find no violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from app.core.model import UserName
from app.core.policy import Policy
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.signals import signals_as_interrupt
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry
from loadtest.philly import TRACES
from tests.faults.fault_cluster import Rig, open_rig
from tests.faults.job_replay import play
from tests.faults.philly import (
    GPUS_OF_NODE,
    HOUR,
    STARVED,
    Account,
    Result,
    Window,
    differences,
    nodes,
    simulate,
    sum_up,
)

LOG = TRACES / "philly_2017.csv.gz"
P4 = {"start": 4_204_619.0, "span": 345_600.0, "tenant": "vcb436b2", "gpus": 320}
NO_INPUT = 2
BOTH = f"{'cluster':>10}{'sim.':>10}"


def main() -> int:
    """Run it; return 0 if both plays agree, 1 otherwise, 2 without the log."""
    told = _parser().parse_args()
    if not told.log.exists():
        print(f"There is no log {told.log}; name another by --log.", file=sys.stderr)
        return NO_INPUT
    window = Window(
        told.start,
        told.span,
        told.tenant or None,
        told.speed,
        nodes(told.gpus) * GPUS_OF_NODE,
        told.first,
        told.minutes * 60 if told.minutes else None,
    )
    works = window.works(told.log)
    there = sum_up(window, simulate(window, works), window.gpus)
    print(
        f"{len(works)} jobs of {len(there.users)} users on {window.gpus} GPUs, "
        f"{window.until / 1000:.0f} s, {window.speed:g} times faster than they were",
        flush=True,
    )
    if told.simulate:
        print(_table(there, there))
        return 0
    began = time.monotonic()
    here, counts = _on_cluster(window, works)
    found = differences(here, there, window.gpus * window.until / 1000)
    print(_table(here, there))
    for each in found:
        print(f"DIFFERENT: {each}")
    print(f"the observer is content: {json.dumps(counts)}")
    minutes = (time.monotonic() - began) / 60
    print(f"{'the same' if not found else 'not the same'}, after {minutes:.1f} minutes")
    return 1 if found else 0


def _on_cluster(
    window: Window, works: Sequence[SimulatedWorkload]
) -> tuple[Result, dict[str, int]]:
    """Play the window on a separate cluster; return the result and the observer's counts.

    Raises AssertionError if the observer found a violation.
    """
    folder = Path(tempfile.mkdtemp(prefix="fairgate-window-"))
    cluster = LocalCluster(folders.own_folder("window"))
    size = ClusterOptions(nodes=nodes(window.gpus), gpus=GPUS_OF_NODE, fairgate=False)
    with signals_as_interrupt(), open_rig(cluster, folder, size) as rig:
        rig.begin(folder)
        people = _prepare(rig, window, works, folder)
        rig.start("controller")
        rig.leader()
        print("playing", flush=True)
        timeline: list[TimelineEntry] = asyncio.run(
            play(works, cluster.kubeconfig, people, window.until)
        )
        for namespace in rig.stage.namespaces:  # some jobs would run for days
            flags = ("--all", "-n", namespace, "--grace-period=0", "--force")
            cluster.kubectl("delete", "pods", *flags)
        report = rig.verdict()
    shutil.rmtree(folder)
    return sum_up(window, timeline, window.gpus), dict(report["counts"])


def _prepare(
    rig: Rig, window: Window, works: Sequence[SimulatedWorkload], folder: Path
) -> dict[UserName, Path]:
    """Create tenants, the Policy and users that may create pods; return the users' kubeconfigs."""
    rig.stage.apply("default", _policy(window.policy))
    owners: dict[str, set[UserName]] = {}
    for work in works:
        owners.setdefault(work.tenant, set()).add(work.user)
    people = {}
    for tenant, users in sorted(owners.items()):
        rig.stage.namespace(tenant)
        rig.stage.tenant(tenant, "1", tenant)
        named = [f"--user={user}" for user in sorted(users)]
        binding = ("create", "rolebinding", "people", "-n", tenant, "--clusterrole=edit")
        rig.cluster.kubectl(*binding, *named)
        for user in sorted(users):
            people[user] = folder / f"{user}.kubeconfig"
            people[user].touch(0o600)
            people[user].write_text(rig.cluster.create_user(user))
    return people


def _policy(policy: Policy) -> dict[str, object]:
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Policy",
        "metadata": {"name": "default"},
        "spec": {
            "reserveAfter": f"{policy.reserve_after // 1000}s",
            "halfLife": f"{policy.half_life // 1000}s",
            "minRuntime": f"{policy.min_runtime // 1000}s",
        },
    }


def _table(here: Result, there: Result) -> str:
    """Return both plays in one table: the cluster's figures, then the simulator's."""
    lines = [
        f"{'':16}{'held, device-s':>24}{'':8}{'mean wait, s':>20}{'starving, h of log':>20}",
        f"{'user':10}{'jobs':>6}{'cluster':>12}{'sim.':>12}{'apart':>8}" + 2 * BOTH,
    ]
    for user, theirs in there.users.items():
        ours = here.users.get(user, Account(0, 0.0, 0.0))
        apart = 100 * (ours.held - theirs.held) / theirs.held if theirs.held else 0.0
        starving = [each.starving.get(user, 0) / HOUR for each in (here, there)]
        lines.append(
            f"{user:10}{ours.jobs:6}{ours.held:12.1f}{theirs.held:12.1f}{apart:7.1f}%"
            f"{ours.wait:10.2f}{theirs.wait:10.2f}{starving[0]:10.2f}{starving[1]:10.2f}"
        )
    for name in STARVED:
        starved, simulated = len(here.starved(name)), len(there.starved(name))
        lines.append(f"starved for {name} of the log: {starved} users, simulator {simulated}")
    lines.append(f"in use: {100 * here.used:.1f} %, simulator {100 * there.used:.1f} %")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.philly_window", description=__doc__
    )
    parser.add_argument("--log", type=Path, default=LOG, help="default: that in CLUSTER_LOGS")
    parser.add_argument("--tenant", default=P4["tenant"], help="default: of P4; '' is all")
    parser.add_argument("--from", dest="start", type=float, default=P4["start"])
    parser.add_argument("--for", dest="span", type=float, default=P4["span"], help="in seconds")
    parser.add_argument("--speed", type=float, default=200.0, help="default: 200")
    parser.add_argument("--gpus", type=int, default=P4["gpus"], help="default: 320, as it had")
    parser.add_argument("--minutes", type=float, help="play so long at most")
    parser.add_argument("--first", type=int, help="play so many jobs at most")
    parser.add_argument("--simulate", action="store_true", help="the simulator alone, no cluster")
    return parser


if __name__ == "__main__":
    sys.exit(main())
