"""The page of sources: the test that each row names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtest.__main__ import Only

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| asked for")
]
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
MEASURES = sorted(set(re.findall(r"loadtest --only (\w+)", PAGE)))


def test_every_row_has_three_nonempty_cells() -> None:
    assert len(ROWS) == 23
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []


@pytest.mark.parametrize(("file", "name"), TESTS, ids=[name for _, name in TESTS])
def test_every_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", MEASURES)
def test_every_named_measure_exists(name: str) -> None:
    assert name in {each.value for each in Only}
