"""User names cannot inject terminal commands, spreadsheet formulas or misleading characters."""

from __future__ import annotations

import csv
import io
import json
import logging

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from app.config import logging as log_config
from app.core.effects import EmitEvent, EventReason, PodRef
from app.core.model import Uid
from app.core.safe_text import csv_cell, escape_hidden, escape_hidden_in_json
from app.kube.event_recorder import event_body
from app.terminal.output import OutputFormat, OutputOptions, as_text
from app.web.webhook.admission_review import refusal_response

BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C]
CONTROL = [*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
SHAPELESS = [0xAD, 0x200B, 0x200D, 0x3164, 0xFE0F, 0xFEFF, 0xFFF9]
HIDDEN = [chr(each) for each in BIDI + CONTROL + SHAPELESS]
TAGS = "".join(chr(0xE0000 + ord(each)) for each in "obey")
EVIL = f"al\u202eice\x1b[2J\x9b{TAGS}\U000e0100"


def is_safe(text: str) -> bool:
    return not set(text) & set(HIDDEN)


@pytest.mark.parametrize("hidden", HIDDEN, ids=lambda each: f"{ord(each):04x}")
def test_hidden_characters_are_shown_as_escapes(hidden: str) -> None:
    assert escape_hidden(f"a{hidden}b") == f"a\\u{ord(hidden):04x}b"


def test_text_in_tags_and_variation_selectors_is_shown_as_escapes() -> None:
    shown = escape_hidden(f"a{TAGS}\U000e0100b")
    assert shown == "a\\U000e006f\\U000e0062\\U000e0065\\U000e0079\\U000e0100b"


@given(st.text())
def test_no_hidden_character_is_left(text: str) -> None:
    shown = escape_hidden(text)
    assert is_safe(shown)
    shown.encode()


def test_text_of_other_scripts_stays_unchanged() -> None:
    assert escape_hidden("Zoë 山田 שלום علي") == "Zoë 山田 שלום علي"


def test_hidden_characters_are_escaped_in_keys_and_values_of_json() -> None:
    found = {"items": [{EVIL: [EVIL, 1, None, True]}]}
    assert escape_hidden_in_json(found) == {
        "items": [{escape_hidden(EVIL): [escape_hidden(EVIL), 1, None, True]}]
    }


@pytest.mark.parametrize("form", [OutputFormat.JSON, OutputFormat.YAML])
def test_data_is_printed_without_hidden_characters_and_reads_back_the_same(
    form: OutputFormat,
) -> None:
    found = {"user": EVIL}
    text = as_text(OutputOptions(form), found)
    assert is_safe(text.replace("\n", ""))
    assert (json.loads(text) if form == OutputFormat.JSON else yaml.safe_load(text)) == found


@pytest.mark.parametrize(
    "first",
    [
        "=",
        "+",
        "-",
        "@",
        "\t",
        "\r",
        "\n",
        "|",
        "%",
        " =",
        "\uff1d",
        "\uff0b",
        "\uff0d",
        "\uff20",
        "'=",
    ],
)
def test_a_cell_is_no_formula(first: str) -> None:
    cell = csv_cell(f"{first}cmd('calc')")
    assert cell.startswith("'")
    assert is_safe(cell)
    written = io.StringIO()
    csv.writer(written).writerow([cell])
    assert next(csv.reader(io.StringIO(written.getvalue()))) == [cell]


def test_usual_names_are_cells_as_they_are() -> None:
    for name in ("team-a", "alice@example.com", "system:serviceaccount:a:b", ""):
        assert csv_cell(name) == name


def test_events_and_refusals_have_no_hidden_characters() -> None:
    told = event_body(EmitEvent(PodRef(Uid("u"), "ns", "p"), EventReason.WAITING, EVIL))
    assert told["message"] == f"{escape_hidden(EVIL)}; more: kubectl fairgate why p -n ns"
    assert is_safe(
        json.loads(refusal_response("uid", 403, EVIL).body)["response"]["status"]["message"]
    )


def test_log_on_a_terminal_has_no_hidden_characters() -> None:
    record = logging.makeLogRecord({"msg": EVIL, "name": "fairgate", "user": EVIL})
    line = log_config.Human().format(record)
    assert is_safe(line.replace("\x1b[0m", "").replace("\x1b[31m", ""))
