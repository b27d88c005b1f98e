"""The pages for contributors name only files, classes, methods and fields that exist.

A class with a method is looked up in the class; any other name in the files of its table row.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = {path: path.read_text() for path in (ROOT / "app").rglob("*.py")}
CODE = re.compile(r"`([^`]+)`")
FILE = re.compile(r"`((?:app|tests|charts|loadtest)/[\w/.-]+|\w+\.py)`")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
NAME = re.compile(r"(_?[A-Za-z]\w*)(?:\.(_?[a-z]\w*))?(?:\(\))?")


def members() -> dict[str, set[str]]:
    """Return the words in the body of each class of `app`."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in SOURCES.values():
        for each in ast.walk(ast.parse(text)):
            if isinstance(each, ast.ClassDef):
                body = ast.get_source_segment(text, each) or ""
                found[each.name] |= set(re.findall(r"\w+", body))
    return found


def test_every_class_and_method_of_the_glossary_exists() -> None:
    known, sources, missing = members(), SOURCES.values(), []
    for text in CODE.findall((ROOT / "docs" / "glossary.md").read_text()):
        if (found := NAME.fullmatch(text)) is None or not found[1][0].isupper():
            continue
        owner, member = found.groups()
        if member is None:
            exists = any(re.search(rf"^(class )?{owner}\b", s, re.MULTILINE) for s in sources)
        else:
            exists = member in known[owner]
        if not exists:
            missing.append(text)
    assert missing == []


def test_every_name_in_a_row_of_a_file_occurs_in_that_file() -> None:
    missing = []
    rows = [line for line in CONTRIBUTING.splitlines() if "|" in line]
    for row in rows:
        files, _, text = row.strip("| ").partition(" | ")
        sources = [source for path in FILE.findall(files) for source in files_named(path)]
        if not sources:
            continue
        for each in CODE.findall(text):
            found = NAME.fullmatch(each)
            if found is not None and not any(
                all(re.search(rf"\b{word}\b", source) for word in found.groups() if word)
                for source in [*sources, *(SOURCES.values() if each[0].isupper() else ())]
            ):
                missing.append((files, each))
    assert missing == []


def test_every_function_for_a_new_case_has_a_match_statement() -> None:
    rows = re.findall(r"^\| (.+) \| (.*a `case` in `.+) \|$", CONTRIBUTING, re.MULTILINE)
    assert rows
    for files, text in rows:
        known = {
            each.name
            for path in FILE.findall(files)
            for source in files_named(path)
            for each in ast.walk(ast.parse(source))
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and any(isinstance(part, ast.Match) for part in ast.walk(each))
        }
        named = CODE.findall(text.split("a `case` in ")[1])
        assert {each.rpartition(".")[2] for each in named} <= known, files


def files_named(path: str) -> list[str]:
    """Return the texts of a file, or of all files of this name; none for a folder or a pattern."""
    if "/" in path:
        return [(ROOT / path).read_text()] if (ROOT / path).is_file() else []
    return [text for file, text in SOURCES.items() if file.name == path]
