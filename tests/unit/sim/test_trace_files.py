"""Job logs, nodes and tenants from files: parsing and error messages."""

import gzip
import re
from fractions import Fraction
from pathlib import Path

import pytest

from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, TenantName
from app.core.quantities import CPU, PODS
from app.sim.replay.machines import NO_DEVICES, PLENTY, one_pool, read_fleet
from app.sim.replay.trace_files import (
    DEVICE,
    GIB,
    MEMORY,
    make_elastic,
    read_log,
    read_tenants,
    shift_arrivals,
    tenants_of,
)

HEAD = (
    "submit_s,tenant,user,job_id,pods,gpus_per_pod,cpus_per_pod,mem_gib_per_pod,"
    "gpu_model,duration_s,priority,status"
)
NODES = "node,gpus,gpu_model,cpus,mem_gib"


def log(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def fleet_file(folder: Path, *rows: str) -> Path:
    path = folder / "nodes.csv"
    path.write_text("\n".join((NODES, *rows)) + "\n")
    return path


def test_a_row_becomes_a_workload_in_base_units(tmp_path: Path) -> None:
    found = read_log(log(tmp_path, "12.5,lab,ann,j1,4,8,2.5,1.5,,90,7,Pass"))
    (work,) = found.works
    assert (work.name, work.tenant, work.user) == ("j1", "lab", "ann")
    assert (work.at, work.duration, work.pods, work.priority) == (12_500, 90_000, 4, 7)
    assert work.demand == {DEVICE: 8, CPU: 2_500, MEMORY: GIB * 3 // 2, PODS: 1}
    assert found.scale == 1


def test_empty_columns_of_the_log_are_not_requested(tmp_path: Path) -> None:
    (work,) = read_log(log(tmp_path, "0,,,j1,,1,,,,,,")).works
    assert work.demand == {DEVICE: 1, PODS: 1}
    assert (work.tenant, work.user, work.duration, work.pods) == ("all", "all", None, 1)


def test_gzipped_logs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(f"{HEAD}\n1,t,u,j,1,1,,,,5,,\n".encode()))
    assert [work.at for work in read_log(path).works] == [1000]


def test_fraction_of_a_device_scales_all_amounts_to_thousandths(tmp_path: Path) -> None:
    found = read_log(log(tmp_path, "0,t,u,a,1,0.46,,,,5,,", "0,t,u,b,1,2,,,,5,,"))
    assert found.scale == 1000
    assert [work.demand[DEVICE] for work in found.works] == [460, 2000]


def test_option_flat_makes_every_user_a_tenant(tmp_path: Path) -> None:
    rows = ("0,t1,ann,a,1,1,,,,5,,", "1,t2,ann,b,1,1,,,,5,,", "2,t2,bob,c,1,1,,,,5,,")
    works = read_log(log(tmp_path, *rows), flat=True).works
    assert [work.tenant for work in works] == ["ann", "ann", "bob"]
    assert list(tenants_of(works)) == ["ann", "bob"]


def test_tenant_filter_selects_only_the_rows_of_that_tenant(tmp_path: Path) -> None:
    path = log(tmp_path, "0,t1,ann,a,1,1,,,,5,,", "1,t2,ann,b,1,1,,,,5,,")
    assert [work.name for work in read_log(path, tenant="t2").works] == ["b"]
    with pytest.raises(InvalidInput, match=r"no tenant t22 \(did you mean t2\?\)"):
        read_log(path, tenant="t22")


def test_rows_out_of_order_are_sorted_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    path = log(tmp_path, "5,t,u,a,1,1,,,,5,,", "1,t,u,b,1,1,,,,5,,", "5,t,u,c,1,1,,,,5,,")
    assert [work.name for work in read_log(path).works] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("-1,t,u,j,1,1,,,,5,,", "submit_s: '-1' is not valid; use a number of 0 or more"),
        ("x,t,u,j,1,1,,,,5,,", "submit_s: 'x' is not valid"),
        (",t,u,j,1,1,,,,5,,", "submit_s: is empty"),
        ("1,t,u,,1,1,,,,5,,", "job_id: is empty; write a value"),
        ("1,t,u,j,0,1,,,,5,,", "pods: '0' is not valid; use a whole number from 1 up"),
        ("1,t,u,j,1.5,1,,,,5,,", "pods: '1.5' is not valid"),
        ("1,t,u,j,1,,,,,5,,", "gpus_per_pod: is empty"),
        ("1,t,u,j,1,0.0001,,,,5,,", "gpus_per_pod: 0.0001 is finer than a thousandth"),
        ("1,t,u,j,1,1,,,,-5,,", "duration_s: '-5' is not valid"),
        ("1,t,u,j,1,1", "6 values for 12 columns"),
    ],
)
def test_invalid_row_is_refused_with_its_line_and_advice(
    tmp_path: Path, row: str, told: str
) -> None:
    path = log(tmp_path, "0,t,u,good,1,1,,,,5,,", row)
    with pytest.raises(InvalidInput) as refused:
        read_log(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert told in str(refused.value)


def test_duplicate_job_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = log(tmp_path, "0,t,u,j,1,1,,,,5,,", "1,t,u,j,1,1,,,,5,,")
    with pytest.raises(InvalidInput, match=r"log.csv:3: job_id: j is also at .*log.csv:2"):
        read_log(path)


def test_a_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="column job_id is missing"):
        read_log(log(tmp_path, head="submit_s,tenant,user"))
    with pytest.raises(InvalidInput, match="holds no jobs"):
        read_log(log(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_log(tmp_path / "absent.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(b"submit_s" * 99)[:-9])
    with pytest.raises(InvalidInput, match="not a whole gzip file"):
        read_log(broken)


def test_arrival_shifts_are_bounded_repeat_with_the_seed_and_stay_positive(
    tmp_path: Path,
) -> None:
    rows = [f"{second},t,u,j{second},1,1,,,,5,," for second in range(0, 600, 10)]
    works = read_log(log(tmp_path, *rows)).works
    one, again, other = (shift_arrivals(works, Millis(30_000), seed) for seed in (1, 1, 2))
    assert [(w.name, w.at) for w in one] == [(w.name, w.at) for w in again]
    assert [(w.name, w.at) for w in one] != [(w.name, w.at) for w in other]
    before = {work.name: work.at for work in works}
    shifts = [work.at - before[work.name] for work in one]
    assert min(shifts) < -10_000 < 10_000 < max(shifts)
    assert all(abs(shift) <= 30_000 for shift in shifts)
    assert min(work.at for work in one) >= 0
    assert [work.at for work in one] == sorted(work.at for work in one)
    assert one != works


def test_option_gpus_makes_one_pool_of_one_node_that_ignores_models(tmp_path: Path) -> None:
    fleet = one_pool(16)
    (node,) = fleet.nodes(1)
    assert [pool.name for pool in fleet.pools] == ["main"]
    assert (node.allocatable[DEVICE], node.device_sizes) == (16, {})
    assert fleet.capacity(1000, [DEVICE]) == {DEVICE: 16_000}
    path = log(tmp_path, "0,t,u,j,1,1,,,T4,5,,")
    assert read_log(path, models=fleet.models).works[0].pools == ()


def test_cluster_without_gpus_or_with_a_duplicate_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--gpus 0 is no cluster"):
        one_pool(0)
    with pytest.raises(InvalidInput, match="has no node with a GPU"):
        read_fleet(fleet_file(tmp_path, "n1,0,,8,16"))
    with pytest.raises(InvalidInput, match=r"nodes.csv:3: node: n1 is there twice"):
        read_fleet(fleet_file(tmp_path, "n1,1,T4,8,16", "n1,1,T4,8,16"))


def test_each_model_of_device_is_a_pool_and_so_are_nodes_without(tmp_path: Path) -> None:
    fleet = read_fleet(fleet_file(tmp_path, "n1,8,V100,64,256", "n2,2,T4,,", "n3,0,,32,64"))
    assert [pool.name for pool in fleet.pools] == ["v100", "t4", NO_DEVICES]
    for pool, node in zip(fleet.pools, fleet.nodes(1000), strict=True):
        assert pool.selector.items() <= node.labels.items()
    first, second, _ = fleet.nodes(1000)
    assert (first.allocatable[DEVICE], first.device_sizes) == (8000, {DEVICE: 1000})
    assert (first.allocatable[CPU], first.allocatable[MEMORY]) == (64_000, 256 * GIB)
    assert second.allocatable[CPU] == PLENTY
    assert fleet.gpus == 10


def test_nodes_of_one_model_make_one_pool(tmp_path: Path) -> None:
    fleet = read_fleet(fleet_file(tmp_path, "n1,8,V100,64,256", "n2,8,V100,64,256"))
    assert [pool.name for pool in fleet.pools] == ["main"]
    assert fleet.models is None


def test_job_pools_follow_its_models_and_a_job_without_gpus_has_no_limit(
    tmp_path: Path,
) -> None:
    fleet = read_fleet(fleet_file(tmp_path, "n1,8,V100,64,256", "n2,2,T4,,", "n3,0,,32,64"))
    rows = ("0,t,u,a,1,1,,,T4|V100,5,,", "0,t,u,b,1,1,,,,5,,", "0,t,u,c,1,0,2,4,T4,5,,")
    works = read_log(log(tmp_path, *rows), models=fleet.models).works
    assert [work.pools for work in works] == [("t4", "v100"), (), ()]


def tenants_file(folder: Path, *rows: str) -> Path:
    path = folder / "tenants.csv"
    path.write_text("\n".join(("tenant,weight,guarantee_gpus,limit_gpus", *rows)) + "\n")
    return path


def test_tenants_without_a_row_get_weight_one_and_no_quota(tmp_path: Path) -> None:
    works = read_log(log(tmp_path, "0,a,u,1,1,1,,,,5,,", "0,b,u,2,1,1,,,,5,,")).works
    found = read_tenants(
        tenants_file(tmp_path, "a,2.5,4,8"), tenants_of(works), [PoolName("main")], 1
    )
    a, b = found[TenantName("a")], found[TenantName("b")]
    assert a.weight == Fraction(5, 2)
    quota = a.quotas[PoolName("main")]
    assert (quota.guarantee, quota.limit) == ({DEVICE: 4}, {DEVICE: 8})
    assert (b.weight, b.quotas) == (1, {})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("c,1,,", "tenant: c has no job in this log"),
        ("a,-1,,", "weight: '-1' is not valid"),
        ("a,1,8,4", "guarantee_gpus: 8 is over the limit of 4"),
        ("a,1,1.5,", "guarantee_gpus: '1.5' is not valid; use a whole number"),
    ],
)
def test_invalid_tenant_row_is_refused(tmp_path: Path, row: str, told: str) -> None:
    works = read_log(log(tmp_path, "0,a,u,1,1,1,,,,5,,")).works
    with pytest.raises(InvalidInput) as refused:
        read_tenants(tenants_file(tmp_path, row), tenants_of(works), [PoolName("main")], 1)
    assert "tenants.csv:2: " in str(refused.value)
    assert told in str(refused.value)


def test_a_guarantee_is_refused_where_the_file_cannot_say_in_which_pool(tmp_path: Path) -> None:
    works = read_log(log(tmp_path, "0,a,u,1,1,1,,,,5,,")).works
    pools = [PoolName("t4"), PoolName("v100")]
    with pytest.raises(InvalidInput, match="this cluster has 2 pools"):
        read_tenants(tenants_file(tmp_path, "a,1,4,"), tenants_of(works), pools, 1)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("0,t,u,j,1000001,1,,,,5,,", "pods: '1000001' is too large; use 1000000 at most"),
        ("0,t,u,j,1,1e300,,,,5,,", "gpus_per_pod: '1e300' is too large; use 1000000000000 at most"),
        ("1e400,t,u,j,1,1,,,,5,,", "submit_s: '1e400' is too large"),
        ("0,t,u,j,1,1,1e13,,,5,,", "cpus_per_pod: '1e13' is too large"),
        ("0,t,u,j,1,1,,,,1e400,,", "duration_s: '1e400' is too large"),
        ("0,t,u,j,1,1,,,,5,-1e13,", "priority: '-1e13' is too large"),
        ("0,t,u,j,1,1,,,,5,-1.5,", "priority: '-1.5' is not valid; use a whole number"),
    ],
)
def test_numbers_out_of_bounds_are_refused_with_their_place(
    tmp_path: Path, row: str, problem: str
) -> None:
    path = log(tmp_path, "0,t,u,i,1,1,,,,5,,", row)
    with pytest.raises(InvalidInput, match=re.escape(f"{path}:3: {problem}")):
        read_log(path)


@pytest.mark.parametrize(
    ("written", "priority"), [("-5", -5), ("+5", 5), ("-0", 0), ("LS", 0), ("-", 0), ("", 0)]
)
def test_priorities_may_be_negative_and_words_are_none(
    tmp_path: Path, written: str, priority: int
) -> None:
    (work,) = read_log(log(tmp_path, f"0,t,u,j,1,1,,,,5,{written},")).works
    assert work.priority == priority


def test_an_elastic_job_has_as_many_pods_as_a_scenario_at_most(tmp_path: Path) -> None:
    found = read_log(log(tmp_path, "0,t,u,j,1000000,2,,,,5,,"))
    with pytest.raises(InvalidInput, match="job j has 2000000 devices"):
        make_elastic(found, 100, 0)
