"""The output formats of lists: JSON, YAML, CSV and names of the same result."""

from __future__ import annotations

import csv
import json
import re
from operator import itemgetter
from typing import get_args

import pytest
import yaml

from app.core.errors import InvalidInput
from app.terminal.options import OptionGroup, ReportOutput
from app.terminal.output import (
    DATA,
    Listing,
    OutputFormat,
    OutputOptions,
    ReportFormat,
    as_text,
    warn,
)

NODES = Listing(itemgetter("items"), lambda item: f"node/{item['name']}")
FOUND = {
    "items": [
        {"name": "gpu-1", "ready": True, "used": {"nvidia.com/gpu": "4"}, "pool": None},
        {"name": 'a,"b"', "ready": False, "used": {}, "pools": ["x", "y"]},
    ],
    "continue": None,
}


def test_json_and_yaml_have_the_whole_result() -> None:
    assert json.loads(as_text(OutputOptions(OutputFormat.JSON), FOUND, NODES)) == FOUND
    assert yaml.safe_load(as_text(OutputOptions(OutputFormat.YAML), FOUND, NODES)) == FOUND


def test_csv_has_a_row_for_each_item_and_a_column_for_each_key() -> None:
    rows = list(csv.reader(as_text(OutputOptions(OutputFormat.CSV), FOUND, NODES).splitlines()))
    assert rows == [
        ["name", "ready", "used", "pool", "pools"],
        ["gpu-1", "true", '{"nvidia.com/gpu":"4"}', "", ""],
        ['a,"b"', "false", "{}", "", '["x","y"]'],
    ]


def test_csv_without_heads_has_only_the_items() -> None:
    rows = as_text(OutputOptions(OutputFormat.CSV, no_headers=True), FOUND, NODES).splitlines()
    assert rows == as_text(OutputOptions(OutputFormat.CSV), FOUND, NODES).splitlines()[1:]


def test_names_are_kind_and_name_without_duplicates() -> None:
    twice = {"items": [*FOUND["items"], FOUND["items"][0]]}  # type: ignore[misc]
    assert as_text(OutputOptions(OutputFormat.NAME), twice, NODES).splitlines() == [
        "node/gpu-1",
        'node/a,"b"',
    ]


@pytest.mark.parametrize("form", [OutputFormat.CSV, OutputFormat.NAME])
def test_list_formats_are_refused_for_a_single_object(form: OutputFormat) -> None:
    with pytest.raises(InvalidInput, match=f"-o {form.value} prints lists"):
        as_text(OutputOptions(form), {"weight": "2"})


def test_the_help_of_a_report_lists_the_formats_that_it_accepts() -> None:
    group = next(each for each in get_args(ReportOutput) if isinstance(each, OptionGroup))
    [option] = group.options
    listed = re.split(r", | or ", option.default.help.partition(".")[0])
    assert [each.value for each in ReportFormat] == listed
    for form in ReportFormat:
        assert group.value({"form": form}) == OutputOptions(OutputFormat(form.value))


def test_items_without_a_name_are_refused_with_the_reason() -> None:
    with pytest.raises(InvalidInput, match="-o name is not possible: a row is a sum; use -o csv"):
        as_text(
            OutputOptions(OutputFormat.NAME),
            FOUND,
            Listing(itemgetter("items"), no_name="a row is a sum"),
        )


def test_no_cell_of_csv_is_a_formula_of_a_spreadsheet() -> None:
    evil = {"items": [{"name": "=cmd()", "count": -1}]}
    assert as_text(OutputOptions(OutputFormat.CSV), evil, NODES).splitlines()[1] == "'=cmd(),-1"


@pytest.mark.parametrize("form", DATA)
def test_no_format_prints_control_characters(form: OutputFormat) -> None:
    evil = {"items": [{"name": "evil\x1b[2J"}]}
    assert "\x1b" not in as_text(OutputOptions(form), evil, NODES)


def test_a_side_message_escapes_hidden_characters(capsys: pytest.CaptureFixture[str]) -> None:
    warn("pod a/\x1b[31mred\u202e was not released")
    assert capsys.readouterr().err == "fairgate: pod a/\\u001b[31mred\\u202e was not released\n"
