"""The arithmetic of the load-test measures, and their report."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from app.core.errors import ClusterUnavailable, InvalidInput
from loadtest import cost, cost_ablation, cpu, kueue, load, recovery, report
from loadtest.__main__ import cli
from loadtest.figures import (
    Measure,
    Series,
    Target,
    columns,
    percentile,
    rate,
    ratio,
    turns,
)
from loadtest.gate_watch import GateWatch


def series(*values: float, title: str = "some", unit: str = "pods/s") -> Series:
    return Series(title, unit, values)


@pytest.mark.parametrize(
    ("values", "median"), [((3.0,), 3.0), ((9.0, 1.0, 2.0), 2.0), ((1.0, 2.0, 3.0, 100.0), 2.5)]
)
def test_median_is_the_middle_round(values: tuple[float, ...], median: float) -> None:
    assert series(*values).median == median


def test_spread_is_the_lowest_and_the_highest_round() -> None:
    assert series(5.0, 2.0, 9.0).spread == (2.0, 9.0)


def test_ratio_pairs_the_rounds_so_that_a_slow_phase_of_the_box_cancels_out() -> None:
    compared = ratio("a / b", series(100.0, 50.0, 10.0), series(200.0, 100.0, 20.0))
    assert compared.series.values == (0.5, 0.5, 0.5)


def test_ratio_refuses_rounds_that_do_not_pair() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio("a / b", series(1.0, 2.0), series(1.0))


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (Target(least=0.9), 0.9, True),
        (Target(least=0.9), 0.899, False),
        (Target(most=2.0), 2.0, True),
        (Target(most=2.0), 2.1, False),
        (Target(least=1.0, most=2.0), 0.5, False),
    ],
)
def test_target_includes_its_bound(target: Target, value: float, met: bool) -> None:
    assert target.is_met(value) is met


def test_target_is_judged_by_the_median_not_by_the_worst_round() -> None:
    compared = ratio("a / b", series(9.0, 9.5, 1.0), series(10.0, 10.0, 10.0), Target(least=0.9))
    assert compared.is_met


def test_ratio_without_a_target_is_neither_met_nor_missed() -> None:
    assert ratio("a / b", series(1.0), series(2.0)).is_met is None


@pytest.mark.parametrize(("per_cent", "value"), [(1, 1), (50, 50), (99, 99), (100, 100)])
def test_percentile_is_a_value_that_was_seen(per_cent: int, value: int) -> None:
    assert percentile([float(n) for n in range(100, 0, -1)], per_cent) == value


def test_percentile_of_few_values_is_not_below_its_share() -> None:
    assert percentile([1.0, 2.0, 3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


@pytest.mark.parametrize(("values", "per_cent"), [([], 50), ([1.0], 0), ([1.0], 101)])
def test_percentile_of_no_values_or_out_of_range_is_refused(
    values: list[float], per_cent: float
) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, per_cent)


def test_rate_is_per_second_and_needs_time() -> None:
    assert rate(3000, 10.0) == 300.0
    with pytest.raises(ValueError, match="time"):
        rate(1, 0.0)


def test_arms_take_turns_and_each_round_begins_with_another() -> None:
    order = turns(["a", "b", "c"], 4)
    assert "".join(arm for _, arm in order) == "abcbcacababc"
    assert [number for number, _ in order] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_columns_keep_the_order_of_the_arms() -> None:
    made = columns({"b": "second", "a": "first"}, "ms", {"a": [1.0], "b": [2.0]})
    assert [one.title for one in made.values()] == ["second", "first"]


@pytest.fixture
def one_run() -> report.Report:
    fast, slow = series(100.0, 120.0, title="bare"), series(90.0, 96.0, title="Fairgate")
    measure = Measure(
        "releases",
        "Releases",
        ("How it was done.",),
        (fast, slow),
        (ratio("Fairgate / bare", slow, fast, Target(least=0.9)),),
    )
    facts = {"cores": "2"}
    return report.Report("python -m loadtest", facts, {"Go": "1.26"}, (measure,), 61.24)


def test_json_holds_every_round_and_the_verdict(one_run: report.Report) -> None:
    told = json.loads(json.dumps(one_run.as_json()))
    [measure] = told["measures"]
    assert measure["figures"][0]["rounds"] == [100.0, 120.0]
    assert measure["figures"][0]["median"] == 110.0
    [compared] = measure["ratios"]
    assert (compared["median"], compared["target"], compared["met"]) == (0.85, "≥ 0.9", False)
    assert (told["command"], told["machine"]) == ("python -m loadtest", {"cores": "2"})


def test_table_shows_median_spread_verdict_and_how(one_run: report.Report) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    report.show(console, one_run)
    text = console.export_text()
    for part in ("Fairgate / bare", "0.85", "0.80 to 0.90", "missed", "How it was done."):
        assert part in text
    assert "Machine: cores 2" in text


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (99.94, "99.9"), (9.876, "9.88"), (0.9, "0.90")]
)
def test_figures_keep_the_digits_that_mean_something(value: float, text: str) -> None:
    assert report.number(value) == text


def line(kind: str, name: str, *gates: str) -> bytes:
    spec = {"schedulingGates": [{"name": gate} for gate in gates]} if gates else {}
    return msgspec.json.encode({"type": kind, "object": {"metadata": {"name": name}, "spec": spec}})


def test_watch_counts_a_pod_once_when_its_last_gate_is_gone() -> None:
    watch, held = GateWatch(), []
    watch.hear(line("ADDED", "a", "one", "two"), held.append)
    watch.hear(line("MODIFIED", "a", "one"), held.append)
    assert (held, watch.opened) == (["a"], {})
    watch.hear(line("MODIFIED", "a"))
    first = watch.opened["a"]
    watch.hear(line("MODIFIED", "a"))
    watch.hear(line("DELETED", "b"))
    assert watch.opened == {"a": first}


def test_watch_that_ended_in_an_error_is_no_result() -> None:
    with pytest.raises(ClusterUnavailable, match="watch"):
        GateWatch().hear(b'{"type":"ERROR","object":{}}')


async def test_watch_timeout_reports_how_many_pods_were_released() -> None:
    watch = GateWatch()
    watch.hear(line("ADDED", "a"))
    with pytest.raises(load.BenchFailed, match="only 1 of 2 pods"):
        await watch.wait(2, limit=0.01)


async def test_load_sends_every_item_once_and_at_most_sixteen_at_a_time() -> None:
    sent: list[int] = []
    under_way = peak = 0

    async def send(item: int) -> None:
        nonlocal under_way, peak
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0)
        sent.append(item)
        under_way -= 1

    await load.over(range(100), send, limit=5)
    assert sorted(sent) == list(range(100))
    assert peak == load.CONNECTIONS


async def test_load_raises_the_first_failure_as_it_is() -> None:
    async def send(item: int) -> None:
        raise ClusterUnavailable("no answer")

    with pytest.raises(ClusterUnavailable, match="no answer"):
        await load.over(range(100), send, limit=5)


@pytest.mark.parametrize("promise", recovery.PROMISES, ids=lambda promise: promise.title)
def test_every_promise_of_a_time_is_noted_by_a_fault_test(promise: recovery.Promise) -> None:
    text = (recovery.ROOT / "tests" / "faults" / f"test_{promise.file}.py").read_text()
    assert f"def {promise.test.partition('[')[0]}" in text
    noted = re.findall(r'took\(\s*f?"([^"]+)"', text)
    assert any(promise.is_in(promise.test, re.sub(r"{[^}]*}", "it", each)) for each in noted)


def test_cpu_of_a_process_is_read_behind_a_name_with_spaces_and_parentheses() -> None:
    stat = "42 (a) (b c)) S " + " ".join(str(number) for number in range(4, 53))
    assert cpu.cpu_of(stat) == (14 + 15) * cpu.TICK_MS


def test_cost_per_pod_excludes_the_idle_use() -> None:
    turn = cost.turn_of({"a": 5_000.0, "b": 10.0}, {"a": 100.0, "b": 10.0}, 10.0, 100)
    assert turn.per_pod == {"a": 40.0, "b": 0.0}
    assert turn.sum() == 40.0


def test_ablation_removes_only_the_named_policies_and_webhooks() -> None:
    binding = {"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "fairgate-update"}}
    policy = {"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "fairgate-update"}}
    hooks = [{"name": "create.fairgate.io"}, {"name": "update.fairgate.io"}]
    configuration = {"kind": "ValidatingWebhookConfiguration", "webhooks": hooks}
    written = {
        "mode": "Enforce",
        "policies.yaml": yaml.safe_dump_all([policy, binding]),
        "webhooks.yaml": yaml.safe_dump_all([configuration]),
    }
    parts = cost_ablation.LeftOut(policies=("update",), webhooks=("update.fairgate.io",))
    left = cost_ablation.without(written, parts)
    assert list(yaml.safe_load_all(left["policies.yaml"])) == [policy]
    [kept] = yaml.safe_load_all(left["webhooks.yaml"])
    assert kept["webhooks"] == hooks[:1]
    assert left["mode"] == "Enforce"


def test_a_folder_without_kueue_is_refused_with_the_way_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"go build -o bin/manager \./cmd/kueue"):
        kueue.program(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "cost", "--kueue", "x"], "--kueue belongs to the measure peers"),
        (["--only", "peers"], "name its folder by --kueue"),
    ],
)
def test_kueue_and_peers_belong_together(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, InvalidInput)
    assert told in str(result.exception)


def test_webhooks_of_kueue_are_called_for_its_namespace_only() -> None:
    service = {"name": "webhook-service", "namespace": "system", "path": "/mutate--v1-pod"}
    webhook = {"name": "mpod.kb.io", "clientConfig": {"service": service}, "failurePolicy": "Fail"}
    body = {"metadata": {"name": "mutating-webhook-configuration"}, "webhooks": [webhook]}
    kueue.redirect(body, "https://127.0.0.1:9443", "Q0E=")
    [found] = body["webhooks"]
    assert found["clientConfig"] == {
        "url": "https://127.0.0.1:9443/mutate--v1-pod",
        "caBundle": "Q0E=",
    }
    [only] = found["namespaceSelector"]["matchExpressions"]
    assert (only["operator"], only["values"]) == ("In", [kueue.NAMESPACE])


def test_a_pod_for_kueue_is_the_pod_of_the_load_with_a_queue() -> None:
    ours = msgspec.json.decode(load.pod("one", gated=False))
    theirs = msgspec.json.decode(kueue.pod("one"))
    assert theirs["metadata"].pop("labels") == {"kueue.x-k8s.io/queue-name": kueue.QUEUE}
    assert theirs == ours
