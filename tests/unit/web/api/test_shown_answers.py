"""The answers that docs/api.md and docs/tenants.md show have the fields of the real ones."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.asgi import call
from tests.support.rest_app import Both

DOCS = Path(__file__).parents[4] / "docs"
COMMAND = re.compile(r"(?:curl|get --raw) (?![^\n]*jq)[^\n]*?(/v1/[^?`\s\"]*)[^\n]*\n")
PROSE = re.compile(r"\n(?=[A-Z*]|`[^`])")
ANSWER = re.compile(r"^ *(?={)", re.MULTILINE)


def answers() -> list[tuple[str, Any]]:
    """Return path and answer of each request that a page shows with a whole answer."""
    found = []
    for page in ("api.md", "tenants.md"):
        _, *parts = COMMAND.split((DOCS / page).read_text())
        for path, rest in zip(parts[::2], parts[1::2], strict=True):
            _, *shown = ANSWER.split(PROSE.split(rest)[0], maxsplit=1)
            for text in shown:
                with contextlib.suppress(json.JSONDecodeError):  # a part of an answer
                    found.append((path, json.JSONDecoder().raw_decode(text)[0]))
    return found


def model(described: Any, path: str) -> Any:
    """Return the schema of the answer of a route."""
    for route, operations in described["paths"].items():
        if re.fullmatch(re.sub(r"{[^}]+}", "[^/]+", route), path):
            answer = (operations.get("get") or operations["post"])["responses"]["200"]
            return answer["content"]["application/json"]["schema"]
    raise AssertionError(f"there is no route {path}")


def differences(value: Any, schema: Any, described: Any, place: str) -> Iterator[str]:
    """Yield each field that an example lacks, or that the schema lacks."""
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        forms = [each for each in schema["anyOf"] if each.get("type") != "null"]
        if value is not None and len(forms) == 1:
            yield from differences(value, forms[0], described, place)
    elif isinstance(value, list):
        for each in value:
            yield from differences(each, schema["items"], described, f"{place}[]")
    elif isinstance(value, dict) and "properties" in schema:
        known = set(schema["properties"])
        yield from (f"{place}.{name}" for name in sorted(known ^ set(value)))
        for name in known & set(value):
            yield from differences(
                value[name], schema["properties"][name], described, f"{place}.{name}"
            )


async def test_shown_answers_have_the_fields_of_the_schema() -> None:
    both = Both()
    await both.open()
    described = (await call(both.app, "GET", "/openapi.json")).json
    shown = answers()
    assert len(shown) >= 5
    wrong = [
        each
        for path, value in shown
        if path != "/v1/usage"  # a row has the fields that `by` names
        for each in differences(value, model(described, path), described, path)
    ]
    assert wrong == []
