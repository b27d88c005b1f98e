"""Tables at 80 columns: no break inside a word, however long the names are."""

from __future__ import annotations

import pytest

from app.kubectl import tables
from app.terminal.table import SHORTEST, Column, FittedTable, shorten
from app.terminal.text import Block, Page, as_block
from tests.support import kubectl_answers as answers

PODS = ("llm-pretrain-70b-worker-0-7f9dxk2", "eval", "ablation-study-with-many-seeds-x7k2p")
USERS = ("system:serviceaccount:kubeflow-team-a:default-editor", "alice.wonderland@example.com")


def shown(table: Block | str, width: int) -> list[str]:
    """Return the lines of a table on a terminal of this width."""
    return list(as_block(table).lines(Page(width)))


def queue() -> list[dict[str, object]]:
    found = [
        answers.waiting(pod, user, position=number * 7 + 1, pods=4, estimate=answers.estimate())
        for number, pod in enumerate(PODS)
        for user in USERS
    ]
    return [answers.queue(*found).model_dump(mode="json", by_alias=True)]


@pytest.mark.parametrize("several", [True, False])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_word_is_broken_at_any_width(several: bool, width: int) -> None:
    table = tables.queues(queue(), False, answers.NOW, several=several)
    whole = {word for line in shown(table, 1000) for word in line.split()}
    lines = "\n".join(shown(table, width)).partition("Left out")[0].splitlines()
    words = {word for line in lines for word in line.split()}
    assert {word for word in words - whole if "…" not in word} == set()
    assert all(any(f"team-a/{pod}" in line for line in lines) for pod in PODS)


def test_each_row_of_a_queue_is_one_line_at_80_columns() -> None:
    lines = shown(tables.queues(queue(), False, answers.NOW, several=False), 80)
    rows = [line for line in lines if "team-a/" in line]
    assert len(rows) == len(PODS) * len(USERS)
    assert max(map(len, rows)) <= 80


def test_columns_that_are_left_out_are_named_and_wide_has_them_all() -> None:
    table = tables.queues(queue(), False, answers.NOW, several=True)
    assert shown(table, 80)[-1].startswith("Left out: TENANT, USER, ASKS, FOR;")
    wide = shown(tables.queues(queue(), True, answers.NOW, several=True), 80)
    assert len(wide) == 1 + len(PODS) * len(USERS)
    assert wide[0].split()[:2] == ["TENANT", "USER"]
    assert USERS[0] in wide[1]


def test_column_names_are_not_cut_in_a_table_wider_than_the_terminal() -> None:
    table = FittedTable((Column("POD"), Column("STARTS IN")), [("p" * 30, "-")])
    assert shown(table, 20)[0].split() == ["POD", "STARTS", "IN"]


def test_only_the_first_pool_of_a_tenant_has_its_pending_pods() -> None:
    amounts: dict[str, object] = {key: {} for key in ("guarantee", "limit", "used", "borrowed")}
    items = [
        {"tenant": tenant, "pool": pool, "pending": 7, **amounts}
        for tenant in ("team-a", "team-b")
        for pool in ("a100", "h100")
    ]
    rows = [line.split() for line in shown(tables.quotas(items, False), 80)[1:]]
    assert [row[-1] for row in rows] == ["7", "-", "7", "-"]


def test_narrow_audit_table_retains_the_detail_column() -> None:
    entry = {"at": "2026-02-01T08:00:00Z", "type": "released", "tenant": "vision"}
    entry |= {"user": USERS[1], "namespace": "vision", "name": "api-7d77f9dfbf-8s5ck"}
    entry |= {"facts": {"pool": "h100", "node": "gpu-node-3", "waited": 374}}
    assert shown(tables.audit([entry], False), 80)[0].split() == [
        "TIME",
        "TYPE",
        "OBJECT",
        "DETAIL",
    ]


def test_empty_selection_of_own_pods_is_reported() -> None:
    found = answers.mine().model_dump(mode="json", by_alias=True) | {"workloads": []}
    assert shown(tables.mine(found, False, answers.NOW), 80)[0] == "You have no such pods."


def test_texts_continue_on_the_next_line_before_a_column_is_left_out() -> None:
    columns = (Column("POOL"), Column("USED", wraps=True), Column("AGE", drop=1))
    table = FittedTable(columns, [("a", "h100: 48 gpu; t4: 2 gpu", "5 min")])
    assert shown(table, 33) == [
        "POOL  USED                  AGE",
        "a     h100: 48 gpu; t4: 2   5 min",
        "      gpu",
    ]
    assert shown(table, 31)[0] == "POOL  USED"


def test_a_short_name_is_never_shortened() -> None:
    assert shorten("a" * SHORTEST, SHORTEST) == "a" * SHORTEST
    assert shorten("alice@example.com", SHORTEST) == "alice@…e.com"
