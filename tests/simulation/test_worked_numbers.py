"""The published worked numbers of the fair order, with the public command.

Each scenario file is one row. The expected results are here, next to its name and source.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command_line import fairgate

HERE = Path(__file__).parent
GPU = "nvidia.com/gpu"
EXACT = 1 + 1e-9


def gpus(**held: int) -> dict[str, dict[str, float]]:
    return {tenant: {GPU: count} for tenant, count in held.items()}


HELD: list[tuple[str, str, dict[str, dict[str, float]]]] = [
    (
        "d01-dominant-shares",
        "DRF, NSDI'11",
        {"a": {"cpu": 3, "memory": 12e9}, "b": {"cpu": 6, "memory": 2e9}},
    ),
    ("d02-weights-over-guarantees", "KAI", gpus(a=3, b=5)),
    ("d03-one-against-four", "KAI", gpus(a=3, b=8)),
    ("d04-an-odd-device", "KAI", gpus(a=6, b=5)),
    ("d05-a-thousand-devices", "KAI", gpus(a=450, b=550)),
    ("d06-a-limit", "KAI", gpus(a=600, b=400)),
    ("d07-six-two-one", "KAI", gpus(a=6666, b=2222, c=1111)),
    ("d08-two-levels", "Volcano", gpus(ns1=4, ns2=4, ns3=6, ns4=2)),
    ("d09-two-levels-weighted", "Volcano", gpus(ns1=3, ns2=1, ns3=10, ns4=2)),
    (
        "d10-hierarchy-of-two-resources",
        "H-DRF",
        {"n1": {GPU: 5}, "n21": {"cpu": 10, GPU: 0}, "n22": {GPU: 5, "cpu": 0}},
    ),
    (
        "d11-hierarchy-weighted",
        "H-DRF, weighted",
        {"a1": {"cpu": 30}, "a2": {GPU: 30}, "b": {"cpu": 10, GPU: 10}},
    ),
    ("d12-ones-and-tens", "midpoint", gpus(a=20, b=20)),
    ("p01-priority-buys-nothing", "priority", gpus(a=50, b=50)),
    ("r01-a-guarantee-is-taken-back", "Kueue", gpus(a=3, b=4, c=2)),
    ("r02-borrowing-is-evened-out", "Kueue", gpus(a=4, b=4, c=1)),
    ("r03-no-swap-of-imbalance", "Kueue", gpus(a=3, b=5, c=0)),
    ("r04-one-workload-may-straddle", "Kueue", gpus(a=2, b=0, c=0)),
    ("r05-the-taker-must-not-end-higher", "Kueue", gpus(a=2, b=7, c=0)),
    ("e01-an-elastic-gang-grows", "elastic", gpus(a=8, b=8)),
    ("e02-further-pods-are-taken-first", "elastic", gpus(b=6, c=3)),
    ("e03-a-minimum-is-taken-whole", "elastic", gpus(b=0, c=4)),
    ("e04-an-elastic-gang-takes-longer-with-fewer-pods", "elastic", gpus(a=4)),
    ("r07-a-budget-borrows-nothing", "budgets", gpus(a=4, b=3)),
    ("r08-a-budget-is-overridden", "budgets", gpus(a=4, b=5)),
    ("r09-a-notice-before-the-eviction", "notice", gpus(a=1, b=8)),
    ("r10-a-guarantee-of-many-pods", "notice", gpus(blue=24, red=8)),
]

EVICTED: list[tuple[str, list[tuple[str, str, str]]]] = [
    ("r01-a-guarantee-is-taken-back", [("b-4", "x-0", "guarantee")]),
    ("r02-borrowing-is-evened-out", [("b-4", "x-0", "fair")]),
    ("r03-no-swap-of-imbalance", []),
    ("r04-one-workload-may-straddle", [("b-0", "x-0", "guarantee")]),
    ("r05-the-taker-must-not-end-higher", []),
    ("e02-further-pods-are-taken-first", [("train-0", "x-0", "guarantee")] * 3),
    ("e03-a-minimum-is-taken-whole", [("train-0", "x-0", "guarantee")] * 3),
    ("r07-a-budget-borrows-nothing", []),
    (
        "r08-a-budget-is-overridden",
        [(f"kept-{8 - number}", f"x-{number}", "guarantee") for number in range(4)],
    ),
    ("r09-a-notice-before-the-eviction", [("saves-0", "x-0", "guarantee")]),
]

JAIN = [
    ("j01a-jain-of-8-8-8", 1.0),
    ("j01b-jain-of-10-9-5", 0.932),
    ("j01c-jain-of-1-0-0", 0.333),
]


def simulate(path: Path) -> Any:
    """Run the public command on a file; return its output."""
    done = fairgate("simulate", path, "--output", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def outcome(name: str) -> Any:
    return simulate(HERE / f"{name}.yaml")


def changed(name: str, folder: Path, change: Any) -> Any:
    """Run a changed version of a row."""
    scenario = yaml.safe_load((HERE / f"{name}.yaml").read_text())
    change(scenario)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(scenario))
    return simulate(path)


@pytest.mark.parametrize(("name", "source", "held"), HELD, ids=[row[0] for row in HELD])
def test_tenants_end_up_with_the_documented_usage(
    name: str, source: str, held: dict[str, dict[str, float]]
) -> None:
    tenants = outcome(name)["tenants"]
    used = {
        tenant: {r: tenants[tenant]["used"].get(r, 0) for r in wanted}
        for tenant, wanted in held.items()
    }
    assert used == held, source


def test_dominant_shares_are_equal_at_two_thirds() -> None:
    tenants = outcome("d01-dominant-shares")["tenants"]
    assert tenants["a"]["share"] == tenants["b"]["share"] == pytest.approx(2 / 3)


def test_the_order_in_which_two_tenants_are_named_decides_the_odd_device(tmp_path: Path) -> None:
    def swap(scenario: Any) -> None:
        scenario["workloads"].reverse()

    tenants = changed("d04-an-odd-device", tmp_path, swap)["tenants"]
    assert (tenants["a"]["used"][GPU], tenants["b"]["used"][GPU]) == (5, 6)


def test_a_notice_delays_the_eviction_and_a_checkpoint_bounds_the_loss() -> None:
    found = outcome("r09-a-notice-before-the-eviction")

    assert [each["at"] for each in found["evictions"]] == [130]
    assert found["metrics"]["evicted_device_seconds"] == 1


def test_seconds_and_hours_are_charged_alike_within_the_bound() -> None:
    tenants = outcome("p02-many-short-pods")["tenants"]
    short, long = (tenants[name]["charged"][GPU] for name in ("short", "long"))
    devices, seconds = 10, 600
    half_of_both = 0.5 * (1 + 1)  # devices: the largest difference, by the published bound
    assert short + long == pytest.approx(devices * seconds)
    assert abs(short - long) <= half_of_both * seconds


def test_a_gang_at_the_limit_does_not_starve_the_pods_behind_it() -> None:
    released = [(r["user"], r["workload"]) for r in outcome("l01-a-blocked-gang")["releases"]]
    by_user = Counter(user for user, workload in released if workload != "early-0")
    assert by_user == {"alice": 18, "bob": 18}
    assert not any(workload.startswith("gang") for _, workload in released), "bob fills the limit"


@pytest.mark.parametrize("devices", [1, 2, 3, 8, 100])
def test_the_second_user_is_the_next_one_released(tmp_path: Path, devices: int) -> None:
    def enlarge(scenario: Any) -> None:
        scenario["pools"][0]["capacity"][GPU] = devices

    releases = changed("p03-the-second-user-is-next", tmp_path, enlarge)["releases"]
    after = [r for r in releases if r["at"] >= 5]
    assert (after[0]["workload"], after[0]["user"], after[0]["at"]) == ("first-0", "bob", 7)
    before = [r for r in releases if r["at"] < 5]
    assert len(before) == devices


@pytest.mark.parametrize(("name", "jain"), JAIN, ids=[row[0] for row in JAIN])
def test_jains_index_equals_the_documented_value(name: str, jain: float) -> None:
    assert outcome(name)["metrics"]["jain"] == pytest.approx(jain, abs=0.0005)


@pytest.mark.parametrize(("name", "evicted"), EVICTED, ids=[row[0] for row in EVICTED])
def test_just_these_are_evicted(name: str, evicted: list[tuple[str, str, str]]) -> None:
    evictions = outcome(name)["evictions"]
    assert [(e["workload"], e["for"], e["reason"]) for e in evictions] == evicted


@pytest.mark.parametrize("name", [row[0] for row in EVICTED])
def test_nothing_is_evicted_when_reclaim_is_off(name: str, tmp_path: Path) -> None:
    def off(scenario: Any) -> None:
        scenario["policy"]["reclaim"] = "off"

    assert changed(name, tmp_path, off)["evictions"] == []


@pytest.mark.parametrize("name", ["r02-borrowing-is-evened-out"])
def test_borrowing_is_not_evened_out_where_only_guarantees_count(name: str, tmp_path: Path) -> None:
    def narrow(scenario: Any) -> None:
        scenario["policy"]["reclaim"] = "guarantee"

    assert changed(name, tmp_path, narrow)["evictions"] == []


@pytest.mark.parametrize("within", ["Never", "LowerPriority"])
@pytest.mark.parametrize("mode", ["off", "guarantee", "fair"])
def test_no_workload_is_evicted_and_readmitted_forever(
    mode: str, within: str, tmp_path: Path
) -> None:
    def choose(scenario: Any) -> None:
        scenario["policy"] = {"reclaim": mode, "withinQueue": within}

    result = changed("r06-no-eviction-for-ever", tmp_path, choose)
    evicted = [e["workload"] for e in result["evictions"]]
    assert sorted(evicted) in ([], ["a0-0", "c1-0"])
    if within == "Never" or mode == "off":
        assert evicted == []
    used = {name: t["used"].get(GPU, 0) for name, t in result["tenants"].items()}
    assert used["a"] + used["c"] <= 7
    if not evicted:
        assert used == {"a": 3, "b": 0, "c": 4}
    else:
        assert "x-0" in [r["workload"] for r in result["releases"]]


def test_disruption_budget_is_overridden_only_if_the_policy_allows_it(tmp_path: Path) -> None:
    overridden = outcome("r08-a-budget-is-overridden")
    assert [each["at"] for each in overridden["releases"]] == [6.0] * 4

    def respect(scenario: Any) -> None:
        scenario["policy"]["disruptionBudgets"] = "Respect"

    result = changed("r08-a-budget-is-overridden", tmp_path, respect)
    assert result["evictions"] == []
    assert result["releases"] == []


@pytest.mark.parametrize("path", sorted(HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_drift_stays_within_the_published_bound(path: Path) -> None:
    assert outcome(path.stem)["metrics"]["drift_over_bound_max"] <= EXACT


def test_an_elastic_gang_takes_longer_with_fewer_pods() -> None:
    """Eight pods for an hour are eight pod-hours, so half the devices take two hours."""
    found = outcome("e04-an-elastic-gang-takes-longer-with-fewer-pods")
    started = {each["workload"]: each["at"] for each in found["releases"]}
    assert started == {"train-0": 0.0, "next-0": 7200.0}
