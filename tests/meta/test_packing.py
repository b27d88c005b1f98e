"""The packing measure on small synthetic logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.sim.replay.machines import read_fleet
from app.sim.replay.trace_files import read_log
from loadtest.packing import Filled, fill

HEAD = (
    "submit_s,tenant,user,job_id,pods,gpus_per_pod,cpus_per_pod,mem_gib_per_pod,gpu_model,"
    "duration_s"
)


def filled(
    folder: Path, jobs: list[str], nodes: list[str], *, seed: int = 0, any_model: bool = False
) -> Filled:
    log, cluster = folder / "log.csv", folder / "nodes.csv"
    log.write_text("\n".join((HEAD, *jobs)) + "\n")
    cluster.write_text("\n".join(("node,gpus,gpu_model,cpus,mem_gib", *nodes)) + "\n")
    fleet = read_fleet(cluster)
    return fill(fleet, read_log(log, models=None if any_model else fleet.models), seed)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_half_and_whole_devices_fill_all_nodes_except_half_a_device(
    tmp_path: Path, seed: int
) -> None:
    jobs = ["0,,,a,1,0.5,,,,", "0,,,b,1,1,,,,", "0,,,c,1,0,1,1,,"]
    nodes = ["n1,4,T4,8,16", "n2,4,T4,8,16", "n3,0,,8,16"]
    assert 0 <= filled(tmp_path, jobs, nodes, seed=seed).unallocated_percent <= 6.25


def test_pods_of_more_than_half_a_device_leave_the_rest_of_each_device(tmp_path: Path) -> None:
    found = filled(tmp_path, ["0,,,a,1,0.6,,,,"], ["n1,4,T4,8,16"])
    assert found.unallocated_percent == pytest.approx(40)
    assert found.placed == 4 < found.pods


@pytest.mark.parametrize(("any_model", "left"), [(False, 50), (True, 0)])
def test_pods_use_other_models_only_if_models_are_ignored(
    tmp_path: Path, any_model: bool, left: int
) -> None:
    nodes = ["n1,4,T4,8,16", "n2,4,P100,8,16"]
    found = filled(tmp_path, ["0,,,a,1,1,,,T4,"], nodes, any_model=any_model)
    assert found.unallocated_percent == left
