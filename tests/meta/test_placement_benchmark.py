"""The comparison with the stock scheduler: its random pods and its evaluation of a cluster."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

from app.core.errors import ClusterUnavailable
from app.sim.replay.machines import Machine
from loadtest import default_scheduler_model, openb_sample, profiles, timed_pods, virtual
from loadtest.load import BenchFailed
from loadtest.occupancy import Seen, sum_up
from loadtest.openb_sample import Arrival, Shape

GIB = 1024**3
NODES = "node,gpus,gpu_model,cpus,mem_gib"
PODS = "job_id,submit_s,pods,gpus_per_pod,cpus_per_pod,mem_gib_per_pod,gpu_model,duration_s"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def fleet(tmp_path: Path) -> tuple[Machine, ...]:
    many = [f"a{i},8,G2,96,384" for i in range(7)] + [f"b{i},2,T4,16,64" for i in range(2)]
    return openb_sample.machines(write(tmp_path / "nodes.csv", NODES, "c0,0,,32,64", *many), 5)


def test_scaled_cluster_keeps_the_model_mix_and_omits_nodes_without_gpus(
    fleet: tuple[Machine, ...],
) -> None:
    assert [machine.model for machine in fleet] == ["t4", "g2", "g2", "g2", "g2"]
    assert len({machine.name for machine in fleet}) == 5


def test_only_pods_of_whole_gpus_that_fit_some_node_are_drawn(
    fleet: tuple[Machine, ...], tmp_path: Path
) -> None:
    rows = (
        "whole,0,1,2,10,20,,600",
        "part,0,1,0.5,1,1,,600",
        "none,0,1,0,1,1,,600",
        "too-large,0,1,4,1,1,T4,600",
        "long,0,1,1,1,1,A10|T4|G2,999999",
        "elsewhere,0,1,1,1,1,A10,600",
        "never-ran,0,1,1,1,1,,0",
    )
    found = openb_sample.templates(write(tmp_path / "pods.csv", PODS, *rows), fleet)
    assert found == [
        Arrival(Shape(2, 10_000, 20 * GIB), 10.0),
        Arrival(Shape(1, 1_000, GIB, ("g2", "t4")), openb_sample.LONGEST / openb_sample.FASTER),
    ]


KNOWN = [Arrival(Shape(1, 0, 0), 10.0)] * 9 + [Arrival(Shape(8, 0, 0), 10.0)]


def test_load_depends_on_the_seed_only() -> None:
    mixed = [Arrival(Shape(1 + i % 4, i, i), 1.0) for i in range(40)]
    first, again, other = (openb_sample.draw(mixed, 200, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert openb_sample.spread(first, 8, 1, 1) == openb_sample.spread(first, 8, 1, 1)


def test_multi_gpu_pods_request_the_configured_fraction_of_all_gpus() -> None:
    drawn = openb_sample.draw(KNOWN, 200_000, 1, several=0.5)
    several = sum(pod.shape.gpus for pod in drawn if pod.shape.gpus > 1)
    assert several / sum(pod.shape.gpus for pod in drawn) == pytest.approx(0.5, abs=0.03)


def test_a_load_without_pods_of_several_gpus_is_refused() -> None:
    with pytest.raises(BenchFailed, match="several"):
        openb_sample.draw(KNOWN[:1], 10, 1)


def test_arrivals_ask_for_so_much_of_the_cluster_while_they_last() -> None:
    spread = openb_sample.spread(openb_sample.draw(KNOWN, 10_000, 1), 50, 1.2, 1)
    work = sum(pod.shape.gpus * pod.runs for pod in spread)
    assert spread[-1].at == pytest.approx(work / 50 / 1.2, rel=0.02)
    assert all(a.at <= b.at for a, b in itertools.pairwise(spread))


ONE = (Machine("n", 8, "g2", cpu=80, memory=80),)
SMALL, WHOLE = Arrival(Shape(1, 10, 10), 5.0), Arrival(Shape(8, 10, 10), 5.0)


def test_utilisation_is_relative_to_requests_capped_at_capacity() -> None:
    seen = [Seen(0.0, 0.0, 0.0, 10.0, "n"), Seen(10.0, 12.0, 15.0, None, "n")]
    found = sum_up([SMALL, WHOLE], seen, ONE, span=20.0, horizon=20.0)
    assert found.used == pytest.approx((1 * 10 + 8 * 5) / (1 * 10 + 8 * 10))
    assert found.completed == 3.0
    assert found.after_gate == 1.5


def test_wait_of_a_never_bound_pod_counts_until_the_horizon() -> None:
    seen = [Seen(0.0, 0.0, 2.0, 3.0, "n"), Seen(4.0), Seen()]
    found = sum_up([SMALL, WHOLE, SMALL], seen, ONE, span=10.0, horizon=24.0)
    assert (found.wait, found.wait_several, found.never_bound) == (11.0, 20.0, 2)


def test_free_devices_that_a_random_pod_cannot_use_are_counted() -> None:
    # One device is always in use. A small pod can use each of the other seven, and a whole-node pod
    # cannot use any device.
    seen = [Seen(0.0, 0.0, 0.0, None, "n"), Seen(10.0)]
    found = sum_up([SMALL, WHOLE], seen, ONE, span=10.0, horizon=10.0)
    assert found.unusable == pytest.approx((0 + 7) / 2 / 8)


def test_devices_that_the_cpu_beside_them_is_not_enough_for_cannot_be_used() -> None:
    greedy = Arrival(Shape(1, 75, 0), 5.0)
    found = sum_up([greedy], [Seen(0.0, 0.0, 0.0, None, "n")], ONE, span=10.0, horizon=10.0)
    assert found.unusable == pytest.approx(7 / 8)


def test_node_is_not_unusable_because_of_a_pod_of_another_model() -> None:
    foreign = Arrival(Shape(8, 10, 10, ("t4",)), 5.0)
    seen = [Seen(0.0, 0.0, 0.0, None, "n"), Seen(1.0)]
    assert sum_up([SMALL, foreign], seen, ONE, span=10.0, horizon=10.0).unusable == 0.0


def test_default_scheduler_profile_is_unchanged() -> None:
    assert profiles.profiles("default") == []


def test_packing_profile_equals_the_documented_one() -> None:
    [packing] = profiles.profiles("most")
    assert packing["schedulerName"] == "default-scheduler"
    [fit] = [each for each in packing["pluginConfig"] if each["name"] == "NodeResourcesFit"]
    strategy = fit["args"]["scoringStrategy"]
    weights = {each["name"]: each["weight"] for each in strategy["resources"]}
    assert strategy["type"] == "MostAllocated"
    assert weights["nvidia.com/gpu"] == default_scheduler_model.DEVICE_WEIGHT * weights["cpu"]
    assert weights["cpu"] == weights["memory"]


def test_the_model_of_the_stock_scheduler_spreads_and_by_the_other_profile_packs() -> None:
    two = (Machine("a", 8, "g2", 80, 80), Machine("b", 8, "g2", 80, 80))
    pods = [Arrival(Shape(4, 10, 10), 100.0, float(at)) for at in range(4)]
    spread = [one.node for one in default_scheduler_model.play(pods, two, most=False, seed=1)]
    packed = [one.node for one in default_scheduler_model.play(pods, two, most=True, seed=1)]
    assert len(set(spread[:2])) == 2
    assert len(set(packed[:2])) == 1
    assert sorted(packed) == ["a", "a", "b", "b"]


def test_in_the_model_whatever_fits_starts_and_the_rest_waits_for_an_end() -> None:
    pods = [
        Arrival(Shape(4, 0, 0), 10.0, 0.0),
        Arrival(Shape(8, 0, 0), 10.0, 1.0),
        Arrival(Shape(4, 0, 0), 3.0, 2.0),
    ]
    seen = default_scheduler_model.play(pods, ONE, most=False, seed=1)
    assert [(one.bound, one.ended) for one in seen] == [(0.0, 10.0), (10.0, 20.0), (2.0, 5.0)]


def test_the_engine_plays_the_same_load_in_virtual_time() -> None:
    pods = [Arrival(Shape(8, 10, 10), 10.0, 0.0), Arrival(Shape(1, 10, 10, ("g2",)), 3.0, 9.0)]
    seen = virtual.play(pods, ONE)
    assert [(one.bound, one.ended, one.node) for one in seen] == [
        (0.0, 10.0, "n"),
        (10.0, 13.0, "n"),
    ]


def heard(name: str, kind: str = "MODIFIED", **rest: object) -> bytes:
    metadata = {"name": name, "resourceVersion": "7"}
    return msgspec.json.encode({"type": kind, "object": {"metadata": metadata, **rest}})


def test_a_watch_notes_when_the_gate_went_when_a_node_was_written_and_when_it_ended() -> None:
    seen = [Seen(), Seen()]
    gated = {"spec": {"schedulingGates": [{"name": "g"}]}}
    bound = {"spec": {"nodeName": "n"}}
    for at, line in enumerate(
        (
            heard("pod-00001", "ADDED", **gated),
            heard("pod-00001"),
            heard("pod-00001", **bound),
            heard("pod-00001", **bound, status={"phase": "Succeeded"}),
            heard("pod-00001", **bound, status={"phase": "Succeeded"}),
            heard("pod-00000", "DELETED", **bound),
            heard("probe", **bound),
        )
    ):
        assert timed_pods.hear(line, seen, float(at)) == "7"
    assert seen == [Seen(), Seen(None, 1.0, 2.0, 3.0, "n")]


def test_a_watch_that_ended_in_an_error_is_no_result() -> None:
    with pytest.raises(ClusterUnavailable, match="watch"):
        timed_pods.hear(heard("pod-00000", "ERROR"), [Seen()], 0.0)


def test_pod_manifest_has_models_run_time_and_requests() -> None:
    pod = msgspec.json.decode(timed_pods.pod("p", Arrival(Shape(2, 1500, GIB, ("g2",)), 1.5)))
    assert pod["metadata"]["annotations"]["kwok.fairgate.dev/runtime"] == "1.500s"
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert container["resources"]["requests"] == {"cpu": "1500m", "memory": str(GIB)}
    terms = pod["spec"]["affinity"]["nodeAffinity"]
    [term] = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "gpu_model", "operator": "In", "values": ["g2"]}]
    bare = msgspec.json.decode(timed_pods.pod("p", Arrival(Shape(1, 0, 0), 1.0)))
    assert "affinity" not in bare["spec"]
