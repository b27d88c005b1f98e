"""Counts markers of unplain English in docstrings, comments, messages and documentation.

The markers are patterns of headless clauses, archaic words and similar. The check fails if a file
has too many marked sentences. A few plain sentences match too, so the limits are above zero.
Exit codes: 0 passed, 1 a limit is exceeded, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from textwrap import shorten

MARKERS = {
    "headless": r"\bwhat (is|are|was|were|has|it|they|he|of|comes|came|pods|a|the|no|nobody|only"
    r"|that|would|could|fits|fell|runs|waits|ended|else|each|those|can|must|may|there|becomes"
    r"|became|should|others|people|users|somebody)\b",
    "who": r"\b(who|whoever|whom|whose)\b",
    "nobody": r"\b(nobody|nothing|none)\b",
    "tell": r"\b(told|tells|tell|telling)\b",
    "of-it": r"\b[Oo]f (which|it|that|those|them|whom|these)\b",
    "fronted": r"^(Of|To|By|From|With|Without|In|Beyond|For|Under|Among|On|After|Where|While|Who"
    r"|Whoever|What)\b",
    "so-many": r"\b(is so|be so|so long|so many|so much|so often|as far as)\b",
    "archaic": r"\b(anew|vain|aside|lately)\b",
    "does-nothing": r"\b([Dd]ecides nothing|[Kk]nows nothing|[Kk]nows no|[Tt]akes nothing"
    r"|[Rr]eads only|[Cc]hanges nothing|[Aa]sks nothing)\b",
}
SPLIT = re.compile(r"(?<=[.;:?!])\s+")
LUA_COMMENT, YAML_COMMENT = r"\s*--\s?(.*)", r"\s*#\s?(.*)"
JS_COMMENT = r"\s*(?://|/?\*+/?)\s?(.*)"
JS_STRING = (
    r"""//[^\n]*|/\*.*?\*/|"((?:\\.|[^"\\\n])*)"|'((?:\\.|[^'\\\n])*)'|`((?:\\.|[^`\\])*)`"""
)
INLINE = {"a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "time"}

Texts = Iterator[tuple[int, str]]
"""Line number and text of each docstring, comment, message or page of a file."""


@dataclass(frozen=True, slots=True)
class Scope:
    name: str
    glob: str
    read: Callable[[str], Texts]
    is_messages: bool = False


@dataclass(frozen=True, slots=True)
class Sentence:
    scope: Scope
    path: str
    line: int
    text: str
    markers: tuple[str, ...]


def sentences(text: str) -> list[str]:
    """Return the sentences of four words or more."""
    return [part for part in SPLIT.split(text.replace("\n", " ")) if len(part.split()) >= 4]


def markers(sentence: str, flags: int = 0) -> tuple[str, ...]:
    """Return the names of the markers that match the sentence."""
    return tuple(name for name, pattern in MARKERS.items() if re.search(pattern, sentence, flags))


def string_of(statement: ast.AST) -> str | None:
    """Return the text of a statement that is only a string, such as a docstring."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        text = statement.value.value
        return text if isinstance(text, str) else None
    return None


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all statements below it. Expressions, which are many, are not visited."""
    yield node
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, name, ()):
            yield from statements(each)


def python_prose(source: str) -> Texts:
    """Yield docstrings, strings below an assignment in a module or class, and comments."""
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.body[0].lineno if node.body else 1, ast.get_docstring(node) or ""
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, here in zip(node.body, node.body[1:], strict=False):
                if isinstance(before, ast.Assign | ast.AnnAssign):
                    yield here.lineno, string_of(here) or ""
    lines = io.StringIO(source if "#" in source else "")
    for token in tokenize.generate_tokens(lines.readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def python_messages(source: str) -> Texts:
    """Yield all other strings; a placeholder of an f-string counts as the word X."""
    seen: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if string_of(node) is not None:
            seen.update(ast.iter_child_nodes(node))
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "X" for each in node.values]
            yield node.lineno, "".join(map(str, parts)).replace("\n", " ")
            seen.update(each for each in ast.walk(node) if isinstance(each, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in seen:
            yield node.lineno, node.value.replace("\n", " ")


def comments(pattern: str) -> Callable[[str], Texts]:
    """Return a reader of comments. Consecutive lines that match the pattern are one text."""

    def read(source: str) -> Texts:
        block: list[str] = []
        for number, line in enumerate([*source.splitlines(), "end"], start=1):
            if match := re.fullmatch(pattern, line):
                block.append(match[1])
            elif block:
                yield number - len(block), "\n".join(block)
                block = []

    return read


def js_strings(source: str) -> Texts:
    """Yield string literals outside comments; a placeholder counts as the word X."""
    for match in re.finditer(JS_STRING, source, re.S):
        if match.lastindex:
            text = re.sub(r"\$\{[^}]*\}", "X", match[match.lastindex])
            yield source.count("\n", 0, match.start()) + 1, text


class Blocks(HTMLParser):
    """Collects the text between block elements."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = [(1, "")]

    def handle_starttag(self, tag: str, attrs: object = None) -> None:
        if tag not in INLINE:
            self.texts.append((self.getpos()[0], ""))

    handle_endtag = handle_starttag

    def handle_data(self, data: str) -> None:
        line, text = self.texts[-1]
        self.texts[-1] = line, text + data


def html_text(source: str) -> Texts:
    blocks = Blocks()
    blocks.feed(source)
    yield from blocks.texts


def markdown_text(source: str) -> Texts:
    """Yield the page as one text, without code. Line numbers stay as they are."""
    source = re.sub(r"`{3}.*?`{3}", lambda code: "\n" * code[0].count("\n"), source, flags=re.S)
    yield 1, re.sub(r"^ {4}.*$", "", source, flags=re.M)


SCOPES = (
    Scope("app: docstrings and comments", "app/**/*.py", python_prose),
    Scope("app: messages", "app/**/*.py", python_messages, is_messages=True),
    Scope("Lua: comments", "app/**/*.lua", comments(LUA_COMMENT)),
    Scope("page: comments", "app/**/static/*.js", comments(JS_COMMENT)),
    Scope("page: strings", "app/**/static/*.js", js_strings, is_messages=True),
    Scope("page: text", "app/**/static/*.html", html_text, is_messages=True),
    Scope("chart: comments", "charts/fairgate/**/*.yaml", comments(YAML_COMMENT)),
    Scope("chart: pages", "charts/fairgate/**/*.md", markdown_text),
    Scope("README, changelog", "*.md", markdown_text),
    Scope("docs", "docs/**/*.md", markdown_text),
    Scope("certs: pages", "certs/**/*.md", markdown_text),
    Scope("tests: docstrings and comments", "tests/**/*.py", python_prose),
    Scope("loadtest: docstrings and comments", "loadtest/**/*.py", python_prose),
    Scope("page: comments of views", "app/**/static/views/*.js", comments(JS_COMMENT)),
    Scope("page: strings of views", "app/**/static/views/*.js", js_strings, is_messages=True),
)
"""Messages have no limit as a scope: some markers are plain English in a short message."""


def read(root: Path, scope: Scope) -> Iterator[Sentence]:
    for path in sorted(root.glob(scope.glob)):
        for line, text in scope.read(path.read_text(encoding="utf-8")):
            end = 0
            for each in sentences(text):
                start = text.replace("\n", " ").index(each, end)
                end = start + len(each)
                at = line + text.count("\n", 0, start)
                yield Sentence(scope, str(path.relative_to(root)), at, each, markers(each))


def marked(found: list[Sentence]) -> int:
    return sum(bool(each.markers) for each in found)


def excess(file: list[Sentence]) -> int:
    """Return how many marked sentences a file has above its limits; 0 or less: it passes.

    The limits are 8 % (at least 1) without messages, and 20 % (at least 2) with messages.
    """
    prose = [each for each in file if not each.scope.is_messages]
    limits = max(1, len(prose) * 8 // 100), max(2, len(file) * 20 // 100)
    return max(marked(prose) - limits[0], marked(file) - limits[1])


def row(name: str, found: list[Sentence]) -> str:
    share = 100 * marked(found) / max(1, len(found))
    return f"{name:<44}{len(found):>7}{marked(found):>7}{share:>7.1f} %"


def show(found: list[Sentence]) -> None:
    for each in found:
        print(f"{each.path}:{each.line}: {', '.join(each.markers)}: {shorten(each.text, 200)}")


def check_scopes(total: list[Sentence]) -> bool:
    """Print a table of the scopes. Return whether each scope and the whole tree is within 8 %."""
    passed = 100 * marked(total) <= 8 * len(total)
    print(f"{'scope':<44}{'all':>7}{'marked':>7}{'share':>9}")
    for scope in SCOPES:
        found = [each for each in total if each.scope is scope]
        passed &= scope.is_messages or 100 * marked(found) <= 8 * len(found)
        print(row(scope.name, found))
    print(row("whole tree", total))
    prose = [each for each in total if each.scope is SCOPES[0]]
    prose = [replace(each, markers=markers(each.text, re.IGNORECASE)) for each in prose]
    print(row(f"{SCOPES[0].name}, any case", prose))
    return passed


def check_files(total: list[Sentence]) -> bool:
    """Print the worst ten files above their limits. Return whether all files passed."""
    files: dict[str, list[Sentence]] = {}
    for each in total:
        files.setdefault(each.path, []).append(each)
    above = sorted((each for each in files.values() if excess(each) > 0), key=excess, reverse=True)
    if above:
        print(f"\nFiles above their limits: {len(above)}. --show PATH prints all marked sentences.")
    for file in above[:10]:
        print("\n" + row(file[0].path, file))
        show([each for each in file if each.markers][:3])
    return not above


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.meta.plain_english")
    parser.add_argument("--show", metavar="PATH", help="print each marked sentence of a file")
    parser.add_argument("--strict", action="store_true", help="also check each scope as a whole")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
    options = parser.parse_args(arguments)
    if not (options.root / (options.show or "")).exists():
        parser.error(f"{options.show or options.root} does not exist")
    total = [each for scope in SCOPES for each in read(options.root, scope)]
    if options.show:
        show([each for each in total if each.path == options.show and each.markers])
        return 0
    scopes_pass, files_pass = check_scopes(total), check_files(total)
    return 0 if files_pass and (scopes_pass or not options.strict) else 1


if __name__ == "__main__":
    sys.exit(main())
