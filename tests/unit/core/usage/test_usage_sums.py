"""Sums of usage records: exact for any division into intervals."""

from __future__ import annotations

import pytest

from app.core.errors import InvalidInput
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, NodeName, PoolName, Resource, TenantName, Uid, UserName
from app.core.quantities import CPU
from app.core.usage.usage_sums import GroupBy, UsageAggregator, format_resource_seconds

GPU = Resource("nvidia.com/gpu")


def run(
    name: str, begin: int, end: int | None, *, tenant: str = "a", bound: int | None = None
) -> UsageRecord:
    return UsageRecord(
        Uid(name), "space", name, "train", TenantName(tenant), UserName("alice"), PoolName("p"),
        {GPU: 2}, Millis(begin), NodeName("n1" if bound is not None else ""),
        None if bound is None else Millis(bound), None if end is None else Millis(end),
    )  # fmt: skip


def summed(
    *runs: UsageRecord, by: list[GroupBy], span: tuple[int, int], step: int | None = None
) -> object:
    tally = UsageAggregator(
        by, Millis(span[0]), Millis(span[1]), None if step is None else Millis(step)
    )
    for each in runs:
        tally.add(each)
    return [(*row.names, row.at, row.spent[GPU]) for row in tally.rows()]


def test_a_run_counts_as_long_as_it_lasts() -> None:
    assert summed(run("x", 100, 350), by=[GroupBy.TENANT], span=(0, 1000)) == [("a", 0, 500)]


def test_only_usage_within_the_time_span_counts() -> None:
    runs = run("before", 0, 100), run("x", 50, 150), run("y", 190, 900), run("after", 200, 300)
    assert summed(*runs, by=[GroupBy.TENANT], span=(100, 200)) == [("a", 100, 120)]


def test_unfinished_record_counts_until_the_end_of_the_time_span() -> None:
    assert summed(run("x", 100, None), by=[GroupBy.TENANT], span=(0, 300)) == [("a", 0, 400)]


def test_a_node_counts_from_the_binding_on() -> None:
    found = summed(run("x", 100, 400, bound=150), by=[GroupBy.NODE], span=(0, 1000))
    assert found == [("", 0, 100), ("n1", 0, 500)]


def test_record_of_an_unbound_pod_names_no_node() -> None:
    assert summed(run("x", 100, 400), by=[GroupBy.NODE], span=(0, 1000)) == [("", 0, 600)]


def test_a_workload_is_named_with_its_namespace() -> None:
    runs = run("x", 0, 100), run("y", 0, 50)
    assert summed(*runs, by=[GroupBy.WORKLOAD], span=(0, 100)) == [("space/train", 0, 300)]


def test_steps_divide_a_record_without_loss() -> None:
    found = summed(run("x", 150, 420), by=[GroupBy.TENANT], span=(100, 450), step=100)
    assert found == [("a", 100, 100), ("a", 200, 200), ("a", 300, 200), ("a", 400, 40)]


@pytest.mark.parametrize("by", GroupBy)
def test_each_grouping_has_the_same_sum(by: GroupBy) -> None:
    runs = run("x", 0, 333, bound=7), run("y", 50, None, tenant="b"), run("z", 1, 2)
    rows = summed(*runs, by=[by], span=(0, 1000))
    assert isinstance(rows, list)
    assert sum(spent for *_, spent in rows) == 2 * (333 + 950 + 1)


def test_columns_have_the_requested_order() -> None:
    found = summed(run("x", 0, 100), by=[GroupBy.USER, GroupBy.TENANT], span=(0, 100))
    assert found == [("alice", "a", 0, 200)]


def test_more_rows_than_the_maximum_are_refused() -> None:
    tally = UsageAggregator([GroupBy.TENANT], Millis(0), Millis(100), most=2)
    tally.add(run("x", 0, 50, tenant="a"))
    tally.add(run("y", 0, 50, tenant="b"))
    tally.add(run("z", 0, 50, tenant="b"))
    with pytest.raises(InvalidInput, match="more than 2 rows"):
        tally.add(run("w", 0, 50, tenant="c"))


@pytest.mark.parametrize(
    ("resource", "spent", "text"),
    [
        (GPU, 0, "0"),
        (GPU, 1, "0.001"),
        (GPU, 1500, "1.5"),
        (GPU, 3_000_000, "3000"),
        (GPU, 10**30 + 1, "1000000000000000000000000000.001"),
        (CPU, 500 * 1000, "0.5"),
        (CPU, 1, "0.000001"),
    ],
)
def test_seconds_are_exact_decimals(resource: Resource, spent: int, text: str) -> None:
    assert format_resource_seconds(resource, spent) == text
