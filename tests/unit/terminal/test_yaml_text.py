"""YAML in which text stays text for every tool that reads it."""

from __future__ import annotations

import pytest
import yaml

from app.terminal.yaml_text import dump_yaml


@pytest.mark.parametrize(
    "text",
    [
        *["1e3", "12345e7", "-1.5E+3", ".5", "1.", "0129", "0o17", "0x1F", "0b11", "1_000"],
        *["1_0e3", "y", "N", "yes", "null", "2026-01-02", "12:30", ""],
    ],
)
def test_text_that_tools_read_as_something_else_is_quoted(text: str) -> None:
    assert dump_yaml([{"name": text}]) == f"name: '{text}'\n"


@pytest.mark.parametrize("text", ["gpu-1", "1.2.3", "10.0.0.1", "0b12", "1e", "v1", "e3", "yn"])
def test_other_text_stays_plain(text: str) -> None:
    assert dump_yaml([{"name": text}]) == f"name: {text}\n"


def test_values_are_read_back_unchanged_in_their_order() -> None:
    found = {"b": [1, 1.5, True, None], "a": {"text": "two\nlines", "list": []}}
    assert list(yaml.safe_load_all(dump_yaml([found, {}], explicit_start=True))) == [found, {}]
    assert dump_yaml([found]).startswith("b:")
