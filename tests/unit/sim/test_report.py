"""The report of a simulation: JSON for programs, and text for people."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from app.core.model import Millis, PoolName, Resource, Tenant, TenantName, UserName
from app.sim.cluster.workload import SimulatedWorkload, TimelineEntry, TimelineStep, rigid_entry
from app.sim.metrics.tenant_tree import TenantTree
from app.sim.report.formatting import span
from app.sim.report.json_report import to_json
from app.sim.report.progress import progress
from app.sim.report.sparkline import shares_over_time, sparkline
from app.sim.report.text_report import print_outcome
from app.sim.scenario.command import simulate
from app.sim.scenario.guarantee_check import guarantee_warnings
from app.sim.scenario.loader import load, parse
from app.sim.scenario.result import MOST_EXPLAINED, FinalUsage, ScenarioResult

DOCS = Path(__file__).parents[3] / "docs"
GPU = "nvidia.com/gpu"
HOUR = 3_600_000

EXAMPLE = """\
pools:   [{name: main, capacity: {nvidia.com/gpu: 8}}]
tenants: [{name: a, users: [{name: alice}]}, {name: b}]
workloads:
  - {name: w, tenant: a, user: alice, count: 6, request: {nvidia.com/gpu: 1}, duration: 1h}
  - {name: v, tenant: b, count: 6, request: {nvidia.com/gpu: 1}, at: 30m}
until: 1h
"""

OWN_UNITS = """\
pools: [{name: main, capacity: {cpu: 4, memory: 8Gi}}]
tenants: [{name: a}]
workloads:
  - {name: w, tenant: a, request: {cpu: 1500m, memory: 1Gi}}
  - {name: v, tenant: a, request: {cpu: 500m, memory: 1Gi}, duration: 30m}
until: 1h
"""

RECLAIM = """\
policy: {reclaim: guarantee}
nodes: [{name: n, count: 2, capacity: {nvidia.com/gpu: 2}}]
tenants: [{name: a, guarantee: {nvidia.com/gpu: 1}}, {name: b}]
workloads:
  - {name: old, tenant: b, count: 4, request: {nvidia.com/gpu: 1}, running: true}
  - {name: w, tenant: a, request: {nvidia.com/gpu: 1}, at: 10s}
until: 20s
"""

NESTED = """\
pools: [{name: main, capacity: {nvidia.com/gpu: 8}}]
tenants: [{name: child, parent: p}, {name: p, users: [{name: boss}]}, {name: other}]
workloads:
  - {name: c, tenant: child, count: 3, request: {nvidia.com/gpu: 1}}
  - {name: p, tenant: p, user: boss, count: 1, request: {nvidia.com/gpu: 1}}
until: 1h
"""


def result(text: str) -> dict[str, Any]:
    """Return the report in JSON."""
    read: dict[str, Any] = json.loads(json.dumps(to_json(simulate(parse(text, "s.yaml")))))
    return read


def text_of(scenario: str, width: int = 120) -> str:
    written = io.StringIO()
    console = Console(file=written, width=width, markup=False, emoji=False, highlight=False)
    print_outcome(simulate(parse(scenario, "s.yaml")), console)
    return written.getvalue()


def test_the_report_has_the_keys_that_programs_rely_on() -> None:
    report = result(EXAMPLE)

    assert list(report) == ["until", "releases", "evictions", "tenants", "metrics", "waiting"]
    assert report["until"] == 3600.0
    assert report["releases"][0] == {
        "at": 0.0,
        "workload": "w-0",
        "tenant": "a",
        "user": "alice",
        "pool": "main",
        "nodes": [],
    }
    assert report["evictions"] == []
    assert report["metrics"].keys() >= {
        "jain",
        "drift_over_bound_max",
        "drift_pairs",
        "utilisation",
        "starved_users",
        "wait_seconds",
        "large_gang_wait_seconds",
        "evicted_device_seconds",
        "decisions",
        "events",
    }
    assert report["metrics"]["wait_seconds"].keys() == {"mean", "p50", "p95", "max"}
    assert report["metrics"]["large_gang_wait_seconds"].keys() == {"mean", "max"}
    assert report["metrics"]["starved_users"] == {"1h": 0, "4h": 0, "12h": 0}


def test_report_shows_use_charges_and_pending_workloads_of_each_user() -> None:
    """Six workloads of a run for an hour, and two of b in its second half; then all of b run."""
    report = result(EXAMPLE)

    assert report["tenants"]["a"] == {
        "used": {GPU: 0},
        "charged": {GPU: 6 * 3600.0},
        "pending": 0,
        "share": 0.0,
        "users": {"alice": {"used": {GPU: 0}, "charged": {GPU: 6 * 3600.0}, "pending": 0}},
    }
    assert report["tenants"]["b"]["used"] == {GPU: 6}
    assert report["tenants"]["b"]["charged"] == {GPU: 2 * 1800.0}
    assert report["tenants"]["b"]["share"] == 0.75
    assert report["tenants"]["b"]["users"].keys() == {"b"}
    assert report["metrics"]["utilisation"] == {GPU: pytest.approx(7 / 8)}
    assert report["metrics"]["decisions"] == 12
    assert report["metrics"]["events"] == 12 + 12 + 6  # arrived, released, ended
    assert report["metrics"]["wait_seconds"]["max"] == 1800.0


def test_pending_counts_pods() -> None:
    text = EXAMPLE.replace(
        "count: 6, request: {nvidia.com/gpu: 1}, at: 30m", "pods: 3, request: {nvidia.com/gpu: 2}"
    ).replace("until: 1h", "until: 30m")
    outcome = simulate(parse(text, "s.yaml"))

    assert to_json(outcome)["tenants"]["b"]["pending"] == 3
    assert to_json(outcome)["tenants"]["b"]["users"]["b"]["pending"] == 3


def test_amounts_are_in_the_units_of_the_request() -> None:
    tenant = result(OWN_UNITS)["tenants"]["a"]

    assert tenant["used"] == {"cpu": 1.5, "memory": 2**30}
    assert tenant["charged"] == {"cpu": 1.5 * 3600 + 0.5 * 1800, "memory": 2**30 * 5400}
    assert tenant["share"] == 0.375


def test_whole_amounts_are_whole_numbers() -> None:
    used = to_json(simulate(parse(OWN_UNITS.replace("1500m", "3"), "s.yaml")))["tenants"]["a"][
        "used"
    ]

    assert used["cpu"] == 3
    assert isinstance(used["cpu"], int)


def test_eviction_is_reported_with_beneficiary_and_reason() -> None:
    report = result(RECLAIM)

    (eviction,) = report["evictions"]
    assert eviction["at"] == 10.0
    assert eviction["tenant"] == eviction["user"] == "b"
    assert eviction["workload"].startswith("old-")
    assert (eviction["for"], eviction["reason"]) == ("w-0", "guarantee")
    assert report["tenants"]["b"]["pending"] == 1
    assert report["metrics"]["evicted_device_seconds"] > 10


def test_workload_running_at_the_start_is_not_reported_as_a_release() -> None:
    (release,) = result(RECLAIM)["releases"]

    assert release["workload"] == "w-0"
    assert release["pool"] == "default"
    assert len(release["nodes"]) == 1
    assert release["nodes"][0] in {"n-0", "n-1"}


def test_parent_use_includes_its_children_but_users_are_only_its_own() -> None:
    tenants = result(NESTED)["tenants"]

    assert tenants["p"]["used"] == {GPU: 4}
    assert tenants["p"]["charged"] == {GPU: 4 * 3600.0}
    assert tenants["p"]["share"] == 0.5
    assert tenants["p"]["users"].keys() == {"boss"}
    assert tenants["child"]["used"] == {GPU: 3}
    assert tenants["other"]["used"] == {GPU: 0}


@pytest.mark.parametrize("scenario", [EXAMPLE, OWN_UNITS, RECLAIM, NESTED])
def test_the_report_agrees_with_the_engine(scenario: str) -> None:
    from app.sim.cluster.virtual_cluster import VirtualCluster

    read = parse(scenario, "s.yaml")
    world = VirtualCluster(
        read.managed, read.cluster.nodes, read.tenants, read.cluster.pools, read.policy
    )
    for work in read.works:
        world.add_workload(work)
    world.advance_to(read.until)

    report = to_json(simulate(read))
    for name, view in world.view().tenants.items():
        used = {r: v for amounts in view.used.values() for r, v in amounts.items() if v}
        base = {
            r: v * (1000 if r == "cpu" else 1) for r, v in report["tenants"][name]["used"].items()
        }
        assert {r: v for r, v in base.items() if v} == used
        assert report["tenants"][name]["pending"] == view.pending


def test_a_scenario_of_an_instant_reports_that_instant() -> None:
    report = result(EXAMPLE.replace("until: 1h", "until: 0s"))

    assert report["tenants"]["a"]["used"] == {GPU: 6}
    assert report["metrics"]["utilisation"] == {GPU: 0.75}
    assert report["metrics"]["jain"] == 0.5


def test_jain_is_one_for_three_equal_shares_and_a_third_for_one_of_three() -> None:
    text = """\
pools: [{name: main, capacity: {nvidia.com/gpu: 24}}]
tenants: [{name: a}, {name: b}, {name: c}]
workloads: [{name: a, tenant: a, count: 8, request: {nvidia.com/gpu: 1}}%s]
until: 1h
"""
    others = "".join(
        f", {{name: {name}, tenant: {name}, count: 8, request: {{nvidia.com/gpu: 1}}}}"
        for name in "bc"
    )
    assert result(text % others)["metrics"]["jain"] == pytest.approx(1)
    assert result(text % "")["metrics"]["jain"] == pytest.approx(1 / 3)


def test_the_text_names_everyone_and_every_measure() -> None:
    text = text_of(EXAMPLE)

    for word in ("s.yaml: 1 h on 8 gpu", "alice", "75.0", "w-0 to w-5 (6)", "Jain's index"):
        assert word in text
    assert "Evictions" not in text


def test_text_report_lists_evictions() -> None:
    text = text_of(RECLAIM)

    assert "Evictions" in text
    assert "guarantee" in text


def test_report_without_submissions_or_releases_states_so() -> None:
    nothing = EXAMPLE[: EXAMPLE.index("workloads")] + "workloads: []\nuntil: 1h\n"
    shut = EXAMPLE.replace("name: main,", "name: main, paused: true,")

    assert "Nothing was submitted" in text_of(nothing)
    assert "Nothing was released." in text_of(shut)
    assert result(nothing)["metrics"]["jain"] == 1.0
    assert result(shut)["tenants"]["b"]["pending"] == 6


QUEUES = """\
managed: [nvidia.com/gpu]
nodes: [{name: n, count: 2, capacity: {nvidia.com/gpu: 4, cpu: 8}}]
tenants: [{name: a, limit: {nvidia.com/gpu: 3}}, {name: b}, {name: c, paused: true}]
workloads:
  - {name: w, tenant: a, count: 9, every: 1s, request: {nvidia.com/gpu: 1}}
  - {name: g, tenant: b, user: eve, pods: 8, at: 1s, request: {nvidia.com/gpu: 1}}
  - {name: x, tenant: c, at: 2s, request: {nvidia.com/gpu: 1}}
until: 1h
"""


def test_pending_workload_is_reported_with_its_wait_and_its_rule() -> None:
    report = result(QUEUES)
    rules = {each["workload"]: each["rule"] for each in report["waiting"]}

    assert [each["workload"] for each in report["waiting"]][:3] == ["g-0", "x-0", "w-3"]
    assert rules == {
        "g-0": "capacity",
        "x-0": "tenant paused",
        **{f"w-{index}": "limit" for index in range(3, 9)},
    }
    gang, _, first = report["waiting"][:3]
    assert (gang["tenant"], gang["user"], gang["since"]) == ("b", "eve", 1.0)
    assert gang["numbers"]["nvidia.com/gpu free in default"] == "5"
    assert first["text"].startswith("queued: 1 of 6 in a/a; waits for 1 nvidia.com/gpu")
    assert first["numbers"]["nvidia.com/gpu limit"] == "3"


def test_work_that_was_evicted_waits_since_then() -> None:
    (waiting,) = result(RECLAIM)["waiting"]

    assert (waiting["tenant"], waiting["since"], waiting["rule"]) == ("b", 10.0, "capacity")


def test_no_workload_is_reported_as_waiting_if_all_were_released() -> None:
    assert result(OWN_UNITS)["waiting"] == []
    assert "Still waiting" not in text_of(OWN_UNITS)


def test_long_list_of_pending_workloads_is_truncated() -> None:
    text = QUEUES.replace("count: 9, every: 1s", f"count: {MOST_EXPLAINED + 5}")

    assert len(result(text)["waiting"]) == MOST_EXPLAINED
    assert "Still waiting: 1,004 workloads, of which the first 1,000" in text_of(text)


def test_text_report_groups_pending_copies_of_one_workload() -> None:
    text = text_of(QUEUES, 200)
    table = text[text.index("Still waiting: 8 workloads") : text.index("Measures")]

    assert "w-3 to w-8 (6)" in table
    assert "3 s to 8 s" in table
    assert "1 to 6" in table
    assert "tenant a is at its limit: 3 nvidia.com/gpu used" in table


def test_a_long_list_of_releases_counts_its_lines() -> None:
    text = EXAMPLE.replace("count: 6, request: {nvidia.com/gpu: 1}, duration: 1h", "%s")
    many = "count: 30, every: 1s, request: {nvidia.com/gpu: 1}, duration: 1s"

    assert "Releases, the first 20 of 31 lines" in text_of(text % many)


def test_metrics_cover_only_managed_resources() -> None:
    text = QUEUES.replace("gpu: 1}}", "gpu: 1, cpu: 1}}")

    assert result(text)["metrics"]["utilisation"].keys() == {GPU}
    assert result(text)["tenants"]["a"]["share"] == 3 / 8
    assert result(text)["tenants"]["a"]["used"] == {GPU: 3, "cpu": 3}
    every = result(text.replace("managed: [nvidia.com/gpu]\n", ""))
    assert every["metrics"]["utilisation"].keys() == {GPU, "cpu"}


PROMISES = """\
pools: [{name: main, capacity: {nvidia.com/gpu: 8}}]
tenants: [{name: p, guarantee: {nvidia.com/gpu: 6}}, {name: q}, {name: x, parent: p, %s},
          {name: y, parent: p, guarantee: {nvidia.com/gpu: 2}}]
workloads: []
until: 0s
"""


@pytest.mark.parametrize(
    ("guarantee", "told"),
    [
        (4, []),
        (6, []),
        (7, ["9 nvidia.com/gpu of pool main are guaranteed in all, but it has 8"]),
        (9, ["tenant x is guaranteed 9 nvidia.com/gpu of pool main, which has 8"]),
    ],
)
def test_excessive_guarantees_are_reported_and_a_parent_includes_children(
    guarantee: int, told: list[str]
) -> None:
    scenario = parse(PROMISES % f"guarantee: {{nvidia.com/gpu: {guarantee}}}", "s.yaml")
    doubts = list(guarantee_warnings(scenario))

    assert [doubt.split(": ", 1)[1].split(", so")[0] for doubt in doubts] == told
    assert all(doubt.startswith("s.yaml: ") and doubt.endswith(".") for doubt in doubts)


def held(outcome: ScenarioResult, minute: int) -> dict[str, int]:
    """Return the devices of each tenant after a minute."""
    held: dict[str, int] = {}
    for moment in outcome.timeline:
        if moment.at <= minute * 60_000 and moment.step is not TimelineStep.SUBMITTED:
            sign = 1 if moment.step is TimelineStep.RELEASED else -1
            devices = moment.work.demand[Resource(GPU)] * moment.work.pods
            held[moment.work.tenant] = held.get(moment.work.tenant, 0) + sign * devices
    return held


def test_two_teams_example_behaves_as_its_comment_states() -> None:
    outcome = simulate(load(str(DOCS / "examples" / "two-teams.yaml")))
    (gang,) = [moment for moment in outcome.releases if moment.work.name == "pretrain-0"]

    assert held(outcome, 39) == {"vision": 32}
    assert held(outcome, 40) == {"vision": 28, "serving": 4}
    assert held(outcome, 50) == {"vision": 12, "language": 16, "serving": 4}
    assert gang.at == 110 * 60_000


def test_scenario_in_the_docs_behaves_as_documented() -> None:
    example = (DOCS / "scenarios.md").read_text().split("```yaml\n")[1].split("```")[0]
    report = result(example)

    assert [(e["at"], e["workload"], e["for"]) for e in report["evictions"]] == [
        (600.0, "old-1", "train-0")
    ]
    assert [r["workload"] for r in report["releases"]][:3] == ["train-0", "train-1", "train-2"]


def test_names_are_shown_as_they_are_written() -> None:
    assert "[bold]al" in text_of(EXAMPLE.replace("alice", "'[bold]al'"))


def test_the_text_fits_a_narrow_terminal() -> None:
    assert max(len(line.rstrip()) for line in text_of(EXAMPLE, 80).splitlines()) <= 80


def test_sparkline_is_a_dot_for_zero_and_full_for_the_maximum() -> None:
    assert sparkline([0, 0.001, 0.5, 0.999, 1]) == "·▁▅██"


def moment(
    at: int, step: TimelineStep, work: SimulatedWorkload, pool: str = "main"
) -> TimelineEntry:
    return rigid_entry(Millis(at), step, work, PoolName(pool))


UNPRICED: Mapping[PoolName, Mapping[Resource, Fraction]] = {}


def shares(
    timeline: list[TimelineEntry], worth: Mapping[PoolName, Mapping[Resource, Fraction]] = UNPRICED
) -> Any:
    offers = {PoolName("main"): {Resource(GPU): 4}, PoolName("fast"): {Resource(GPU): 4}}
    return shares_over_time(timeline, offers, worth, Millis(100), 4, lambda name: [name])


def test_shares_over_time_are_averages_of_each_step() -> None:
    work = SimulatedWorkload(
        "w", TenantName("a"), UserName("a"), Millis(0), {Resource(GPU): 2}, pods=2
    )
    ended = [moment(-10, TimelineStep.RELEASED, work), moment(50, TimelineStep.ENDED, work)]
    still = [moment(80, TimelineStep.SUBMITTED, work), moment(90, TimelineStep.RELEASED, work)]

    assert shares(ended) == {"a": [0.5, 0.5, 0, 0]}
    assert shares(still)["a"] == pytest.approx([0, 0, 0, 0.2])


def test_shares_over_time_apply_the_price_of_a_resource_in_its_pool() -> None:
    work = SimulatedWorkload("w", TenantName("a"), UserName("a"), Millis(0), {Resource(GPU): 4})
    worth = {PoolName("fast"): {Resource(GPU): Fraction(3)}}

    assert shares([moment(0, TimelineStep.RELEASED, work, "fast")], worth)["a"] == [0.75] * 4


def family(*tenants: tuple[str, str | None, int]) -> TenantTree:
    return TenantTree(
        Tenant(
            TenantName(name), Millis(0), Fraction(weight), TenantName(parent) if parent else None
        )
        for name, parent, weight in tenants
    )


def test_fair_share_of_a_tenant_follows_the_weights_down_the_tree() -> None:
    tree = family(("p", None, 1), ("q", None, 3), ("x", "q", 1), ("y", "q", 2))
    owed = tree.entitled_parts({TenantName(name): {} for name in "pqxy"})

    assert owed == {"p": Fraction(1, 4), "q": 0, "x": Fraction(1, 4), "y": Fraction(1, 2)}


def test_parent_with_its_own_users_is_a_sibling_of_its_children() -> None:
    tree = family(("q", None, 1), ("x", "q", 1))
    owed = tree.entitled_parts(
        {TenantName("q"): {UserName("u"): FinalUsage()}, TenantName("x"): {}}
    )

    assert owed == {"q": Fraction(1, 2), "x": Fraction(1, 2)}


def test_tenants_are_listed_each_before_its_children() -> None:
    tree = family(("x", "q", 1), ("p", None, 1), ("q", None, 1), ("y", "x", 1), ("z", "q", 1))

    assert tree.parents_first() == ["p", "q", "x", "y", "z"]
    assert tree.subtree(TenantName("q")) == ["q", "x", "z", "y"]
    assert tree.depth(TenantName("y")) == 2


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "0 s"),
        (500, "0.5 s"),
        (90_000, "1 min 30 s"),
        (HOUR, "1 h"),
        (26 * HOUR, "1 d 2 h"),
        (-90_000, "-1 min 30 s"),
    ],
)
def test_durations_are_printed_in_two_units_at_most(millis: int, text: str) -> None:
    assert span(millis) == text


def test_progress_is_for_terminals_only() -> None:
    written = io.StringIO()
    with progress("x", Millis(0), Millis(10), Console(file=written)) as tell:
        tell(Millis(5))

    assert written.getvalue() == ""


def test_a_short_run_shows_no_progress() -> None:
    written = io.StringIO()
    with progress("x", Millis(0), Millis(10), Console(file=written, force_terminal=True)) as tell:
        tell(Millis(5))

    assert written.getvalue() == ""


def test_a_long_run_shows_how_far_it_is() -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True)
    clock = iter([0.0, 1.9, 2.1]).__next__
    with progress("x", Millis(0), Millis(10), console, clock) as tell:
        tell(Millis(3))
        assert "%" not in written.getvalue()
        tell(Millis(5))

    assert "50 %" in written.getvalue()
