"""Text that wraps at the width of a terminal."""

from __future__ import annotations

import pytest

from app.terminal.table import Column, FittedTable
from app.terminal.text import Group, Page, Text, cell_len, wrapped


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("a pod waits", ["a pod", "waits"]),
        ("  * pod", ["  * pod"]),
        ("a  pod", ["a  pod"]),
        ("a verylongname", ["a", "verylon", "gname"]),
        ("one\n\ntwo", ["one", "", "two"]),
        ("\u96c6\u7fa4\u96c6\u7fa4", ["\u96c6\u7fa4\u96c6", "\u7fa4"]),
    ],
)
def test_a_text_continues_on_the_next_line_between_words(text: str, lines: list[str]) -> None:
    assert wrapped(text, 7) == lines


def test_a_wide_character_takes_two_cells_and_an_accent_none() -> None:
    assert cell_len("\u96c6a") == 3
    assert cell_len("e\u0301") == 1


def test_styles_are_printed_only_where_they_are_possible() -> None:
    page = Group(Text("Held", "bold"), "", "by capacity")
    assert [*page.lines(Page(80))] == ["Held", "", "by capacity"]
    assert [*page.lines(Page(80, styles=True))] == ["\x1b[1mHeld\x1b[0m", "", "by capacity"]


def test_styles_do_not_move_columns() -> None:
    table = FittedTable(
        (Column("A", dim=True), Column("B", right=True)), [("x", "1"), ("yy", "22")]
    )
    assert [*table.lines(Page(80))] == ["A    B", "x    1", "yy  22"]
    assert [*table.lines(Page(80, styles=True))] == [
        "\x1b[1mA\x1b[0m    \x1b[1mB\x1b[0m",
        "\x1b[2mx\x1b[0m    1",
        "\x1b[2myy\x1b[0m  22",
    ]
