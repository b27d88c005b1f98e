"""Alert rules and the dashboard of the chart use only existing metrics and labels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from app.devcluster.fairgate_install import CHART
from app.web import metrics

FILES = CHART / "files"
INTERFACES = {
    "fairgate_admission_requests_total": ["decision"],
    "fairgate_admission_duration_seconds": [],
    "fairgate_pending_workloads": ["tenant", "pool"],
    "fairgate_used_resources": ["tenant", "pool", "resource"],
    "fairgate_capacity": ["pool", "resource"],
    "fairgate_weighted_share": ["tenant"],
    "fairgate_fairness_drift_ratio": [],
    "fairgate_jain_index": [],
    "fairgate_oldest_pending_seconds": ["tenant"],
    "fairgate_release_total": ["tenant", "pool", "result"],
    "fairgate_release_duration_seconds": [],
    "fairgate_wait_seconds": ["tenant"],
    "fairgate_reclaimed_total": ["tenant", "reason"],
    "fairgate_evicted_resource_seconds_total": ["resource"],
    "fairgate_bypassed_pods_total": [],
    "fairgate_node_refusals_total": ["pool", "reason"],
    "fairgate_leader": [],
    "fairgate_leader_epoch": [],
    "fairgate_engine_seconds": [],
    "fairgate_slow_steps_total": ["step"],
    "fairgate_watch_lag_seconds": [],
    "fairgate_watch_interruptions_total": ["source"],
    "fairgate_store_errors_total": ["operation"],
    "fairgate_certificate_expiry_seconds": [],
    "fairgate_fragmentation_ratio": ["pool"],
    "fairgate_unbound_pods": ["pool"],
    "fairgate_binding_stalled": ["pool"],
    "fairgate_unowned_unbound_resources": ["tenant", "pool", "resource"],
}
"""Public metric names and labels."""

ADDED = {"pod", "instance", "le"}
"""Labels added by Prometheus, and those of histograms."""

SUFFIX = re.compile(r"_(bucket|count|sum)$")
NAME = re.compile(r"\bfairgate_[a-z_]+")
SELECTED = re.compile(r"(fairgate_[a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"([a-z_]+)\s*[=!]")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")


def known() -> dict[str, list[str]]:
    """Return the metrics of the registry and their labels, as they are scraped."""
    found = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            found[name] = list(metric._labelnames)
    return found


def asked(path: Path = FILES) -> Iterator[tuple[str, str]]:
    """Yield each expression with its alert or panel."""
    for group in yaml.safe_load((path / "alerts.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((path / "dashboard.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


EXPRESSIONS = list(asked())


def test_every_public_metric_exists_with_its_labels() -> None:
    there = known()
    assert {name: there.get(name) for name in INTERFACES} == INTERFACES


def test_no_metric_is_labelled_by_users_or_pods() -> None:
    assert not {"user", "pod", "namespace", "uid"} & set(chain(*known().values()))


@pytest.mark.parametrize(("what", "expression"), EXPRESSIONS, ids=[each[0] for each in EXPRESSIONS])
def test_alerts_and_dashboard_query_existing_metrics_and_labels(what: str, expression: str) -> None:
    there = known()
    names = set(NAME.findall(expression))
    assert names, f"{what} asks for nothing of ours"
    bare = {name: SUFFIX.sub("", name) for name in names}
    assert {name for name in names if name not in there and bare[name] not in there} == set()
    labels = {label for name in bare.values() for label in there.get(name, ())} | ADDED
    for name, selectors in SELECTED.findall(expression):
        own = there[name if name in there else SUFFIX.sub("", name)]
        assert set(LABEL.findall(selectors)) <= set(own)
    for group in GROUPED.findall(expression):
        assert {label.strip() for label in group.split(",") if label.strip()} <= labels


def test_urgent_conditions_have_an_alert_with_a_description() -> None:
    rules = {
        rule["alert"]: rule
        for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    }
    for urgent in (
        "FairgateLeaderMissing",
        "FairgateReleaseStalled",
        "FairgateDriftOverBound",
        "FairgateBypassFound",
        "FairgateCertificateNearItsEnd",
        "FairgateRedisAway",
        "FairgateCanaryFailed",
    ):
        assert urgent in rules
    for rule in rules.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_leader_alert_does_not_fire_if_metrics_were_never_scraped() -> None:
    [expression] = [expr for name, expr in EXPRESSIONS if name == "FairgateLeaderMissing"]
    assert "vector(0)" not in expression
    absent, _, condition = expression.partition("absent(fairgate_leader) and on () ")
    assert absent == "sum(fairgate_leader) < 1 or ("
    assert "present_over_time(fairgate_leader[1d])" in condition


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in panels}) == len(panels)
