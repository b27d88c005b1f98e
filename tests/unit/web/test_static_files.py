"""Words of the page: the glossary is complete, and confusing texts do not return."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import app.web
from app.core.explain.reasons import Rule
from app.web.api.dashboard_state import PAUSES
from app.web.api.wait_reason_cache import QUEUED

STATIC = Path(app.web.__file__).parent / "static"
API = STATIC.parent / "api"
GLOSSARY = set(
    re.findall(r'^  \["([^"]+)",', (STATIC / "views" / "glossary.js").read_text(), re.MULTILINE)
)
FILES = [path for path in sorted(STATIC.rglob("*.js")) if "vendor" not in path.parts]


@pytest.mark.parametrize(
    "text",
    [
        "no leader tells",
        "is owed",
        "They wait for",
        "Since you came",
        "It has no node.",
        "hold and wait less",
        "your own pods",
    ],
)
def test_texts_that_confused_readers_do_not_occur(text: str) -> None:
    assert [path.name for path in FILES if text in path.read_text()] == []


def test_the_glossary_explains_each_wait_reason() -> None:
    assert {QUEUED, *(rule.value for rule in Rule)} <= GLOSSARY


def test_page_glossary_explains_each_fault_code() -> None:
    codes = re.findall(r'code="(\w+)"', (API / "dashboard_state.py").read_text())
    assert len(codes) >= 5
    assert {*codes, "ConnectionLost", "Observe"} <= GLOSSARY


def test_the_page_knows_the_fault_of_each_warning_by_its_text() -> None:
    table = re.search(r"const PAUSES = \{\n(.*?)\n\};", (STATIC / "app.js").read_text(), re.DOTALL)
    assert table is not None
    assert dict(re.findall(r'^  (\w+): "(.*)",$', table[1], re.MULTILINE)) == PAUSES


def test_mode_observe_ends_by_the_chart_if_no_policy_sets_it() -> None:
    source = (STATIC / "views" / "glossary.js").read_text()
    observe = next(line for line in source.splitlines() if '["Observe"' in line)
    assert 0 < observe.index("--set mode=Enforce") < observe.index("if the Policy sets the mode")


def test_each_term_of_a_view_is_in_the_glossary() -> None:
    source = "".join(path.read_text() for path in FILES)
    terms = re.findall(r'(?:<\$\{Term\} name=|\bterm: |\bterm=)"([^"]+)"', source)
    assert len(terms) >= 8
    assert {*terms, "fair share", "guarantee", "limit"} <= GLOSSARY


def test_the_page_has_relative_links_because_the_api_server_rewrites_others() -> None:
    links = re.findall(r'(?:href|src)="([^"]+)"', (STATIC / "index.html").read_text())
    assert len(links) >= 4
    assert [link for link in links if link.startswith("/") or ":" in link] == []
