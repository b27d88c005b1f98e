"""The table of tested Kubernetes versions that `make test-versions` writes."""

from __future__ import annotations

import datetime

import pytest

from app.devcluster.go_build import SOURCE
from app.devcluster.kubernetes_versions import VERSIONS, named
from tests.versions import (
    BEGIN,
    END,
    LIMITS,
    PAGE,
    SELECTION,
    VersionResult,
    counts,
    is_fair,
    with_rows,
)

EMPTY = f"before\n{BEGIN}\n{END}\nafter\n"
TODAY = datetime.date(2026, 11, 23)


def result(version: str, failed: int = 0, demo: bool = True) -> VersionResult:
    return VersionResult(named(version), demo, 10, failed, 2, TODAY)


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| 1.")]


def test_a_result_is_a_row_between_the_marks() -> None:
    page = with_rows(EMPTY, [result("1.36")])
    assert page.startswith(f"before\n{BEGIN}\n\n| Kubernetes |")
    assert page.endswith(f"|\n\n{END}\nafter\n")
    assert rows(page) == ["| 1.36.3 | passed | 10 | 0 | 2 | 2026-11-23 | none |"]


def test_rows_of_other_versions_are_preserved_and_sorted_by_version() -> None:
    page = with_rows(with_rows(EMPTY, [result("1.37")]), [result("1.34")])
    assert [row.split()[1] for row in rows(page)] == ["1.34.4", "1.37.2"]


def test_a_new_result_replaces_the_row_of_its_version() -> None:
    page = with_rows(with_rows(EMPTY, [result("1.37")]), [result("1.37", failed=3, demo=False)])
    [row] = rows(page)
    assert "| **failed** | 10 | **3** |" in row
    assert with_rows(page, []) == page


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the lines"):
        with_rows("no table", [])


def test_the_page_has_the_marks() -> None:
    assert with_rows(PAGE.read_text(), []).count(BEGIN) == 1


def test_errors_of_fixtures_count_as_failed() -> None:
    suite = '<testsuite tests="9" failures="2" errors="1" skipped="3" />'
    assert counts(f"<testsuites>{suite}</testsuites>") == (3, 3, 3)


@pytest.mark.parametrize(
    ("said", "fair"),
    [
        ('{"with": {"greedy": 32, "modest": 32}}', True),
        ('{"with": {"greedy": 36, "modest": 28}}', False),
        ('{"without": {}}', False),
        ("", False),
    ],
)
def test_the_demo_passes_if_both_teams_get_the_same(said: str, fair: bool) -> None:
    assert is_fair(said) is fair


def test_only_a_version_without_failures_is_green() -> None:
    assert result("1.34").is_green
    assert not result("1.34", failed=1).is_green
    assert not result("1.34", demo=False).is_green


def test_the_selected_tests_exist_and_each_version_names_its_limits() -> None:
    assert [path for path in SELECTION if not (SOURCE / path).exists()] == []
    assert set(LIMITS) == {version.minor for version in VERSIONS}
