"""The English check finds each text of a file, counts its markers and enforces the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.meta import plain_english
from tests.meta.plain_english import SCOPES, Scope, main, markers, read, sentences

PLAIN = (Path(__file__).parent / "plain_sentences.txt").read_text().splitlines()

MARKED_AND_PLAIN = {
    "headless": ("It returns what is free on a node.", "It returns the free capacity of a node."),
    "who": ("The pod who waits is next.", "The pod that waits is next."),
    "nobody": ("There is nobody in the queue.", "There is no pod in the queue."),
    "tell": ("The leader tells the replicas.", "The leader informs the replicas."),
    "of-it": ("Every pod of it is bound.", "Every pod of the gang is bound."),
    "fronted": ("Of other tenants it is silent.", "It omits the other tenants."),
    "so-many": ("It waits so long at most.", "It waits ten seconds at most."),
    "archaic": ("The node is judged anew.", "The node is judged again."),
    "does-nothing": ("Reads only the cached pods.", "It reads the cached pods."),
}

MODULE = '''\
"""The docstring of the module is here."""

limit = 8
"""The docstring of an attribute is here."""


class Pool:
    """The docstring of a class is here."""

    size: int
    """The docstring of a field is here."""

    def grow(self) -> str:
        """The docstring of a method is here.

        The second sentence is also here.
        """
        name = "the message is a string literal"  # the comment is behind code
        return f"{name} and {len(name):>7} are two placeholders"
'''

PROSE, MESSAGES, LUA, JS_COMMENTS, JS_STRINGS, HTML, CHART = SCOPES[:7]
DOCS = next(scope for scope in SCOPES if scope.name == "docs")


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def write_docstring(root: Path, path: str, *, marked: int, plain: int) -> None:
    text = (
        "The leader tells the replicas.\n" * marked + "The leader informs the replicas.\n" * plain
    )
    write(root, path, f'"""{text}"""\n')


def found(root: Path, scope: Scope) -> list[tuple[int, str]]:
    return [(each.line, each.text) for each in read(root, scope)]


@pytest.mark.parametrize("text", PLAIN)
def test_rewritten_sentences_have_no_marker(text: str) -> None:
    assert [markers(each) for each in sentences(text) if markers(each)] == []


def test_every_marker_has_an_example() -> None:
    assert MARKED_AND_PLAIN.keys() == plain_english.MARKERS.keys()


@pytest.mark.parametrize("name", MARKED_AND_PLAIN)
def test_marker_matches_its_example_only(name: str) -> None:
    marked, plain = MARKED_AND_PLAIN[name]
    assert markers(marked) == (name,)
    assert markers(plain) == ()


def test_short_sentences_are_left_out() -> None:
    assert sentences("Pods wait. Each pod\nwaits for it; then: a node is added") == [
        "Each pod waits for it;",
        "a node is added",
    ]


def test_docstrings_and_comments_are_found_with_their_lines(tmp_path: Path) -> None:
    write(tmp_path, "app/pool.py", MODULE)
    assert sorted(found(tmp_path, PROSE)) == [
        (1, "The docstring of the module is here."),
        (4, "The docstring of an attribute is here."),
        (8, "The docstring of a class is here."),
        (11, "The docstring of a field is here."),
        (14, "The docstring of a method is here."),
        (16, "The second sentence is also here."),
        (18, "# the comment is behind code"),
    ]


def test_messages_and_f_strings_are_found_once(tmp_path: Path) -> None:
    write(tmp_path, "app/pool.py", MODULE)
    assert sorted(found(tmp_path, MESSAGES)) == [
        (18, "the message is a string literal"),
        (19, "X and X are two placeholders"),
    ]


def test_consecutive_comment_lines_are_one_text(tmp_path: Path) -> None:
    write(tmp_path, "app/store/lua/add.lua", "-- Adds a pod\n-- to the queue.\nlocal a = 1\n")
    write(tmp_path, "charts/fairgate/values.yaml", "a: 1\n# Name of the\n# pool of nodes.\n")
    write(tmp_path, "app/web/static/page.js", "let a;\n/** Draws one\n * bar each. */\n")
    assert found(tmp_path, LUA) == [(1, "Adds a pod to the queue.")]
    assert found(tmp_path, CHART) == [(2, "Name of the pool of nodes.")]
    assert found(tmp_path, JS_COMMENTS) == [(2, "Draws one bar each.")]


def test_strings_of_the_page_are_found_outside_comments(tmp_path: Path) -> None:
    write(
        tmp_path, "app/web/static/page.js", "// it's a comment\nsay(`the ${pool} is full now`);\n"
    )
    assert found(tmp_path, JS_STRINGS) == [(2, "the X is full now")]


def test_third_party_files_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "app/web/static/vendor/plot.js", "// Plots a few lines.\n")
    assert found(tmp_path, JS_COMMENTS) == []


def test_inline_elements_do_not_split_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, "app/web/static/index.html", "<p>All <b>free</b> nodes here</p>\n<p>Next</p>")
    assert found(tmp_path, HTML) == [(1, "All free nodes here")]


def test_code_of_a_page_is_left_out(tmp_path: Path) -> None:
    text = "Run it:\n\n```\nmake all of it\n```\n\n    make all of it\n\nThe last line is here.\n"
    write(tmp_path, "docs/users.md", text)
    assert found(tmp_path, DOCS) == [(9, "The last line is here.")]


def test_file_within_its_limit_passes(tmp_path: Path) -> None:
    write_docstring(tmp_path, "app/core/pods.py", marked=2, plain=23)
    assert main(["--root", str(tmp_path), "--strict"]) == 0


def test_one_sentence_above_the_limit_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_docstring(tmp_path, "app/core/pods.py", marked=2, plain=22)
    assert main(["--root", str(tmp_path)]) == 1
    assert "app/core/pods.py:1: tell: The leader tells the replicas." in capsys.readouterr().out


def test_short_file_may_have_one_marked_sentence(tmp_path: Path) -> None:
    write_docstring(tmp_path, "app/core/pods.py", marked=1, plain=0)
    assert main(["--root", str(tmp_path)]) == 0


@pytest.mark.parametrize(("marked", "code"), [(2, 0), (3, 1)])
def test_messages_may_be_marked_up_to_a_fifth(tmp_path: Path, marked: int, code: int) -> None:
    lines = ['say("the leader tells it")'] * marked + ['say("the leader is gone")'] * (12 - marked)
    write(tmp_path, "app/core/pods.py", "\n".join(lines))
    assert main(["--root", str(tmp_path)]) == code


def test_strict_also_fails_if_a_scope_is_above_its_limit(tmp_path: Path) -> None:
    for number in range(10):
        write_docstring(tmp_path, f"tests/test_{number}.py", marked=1, plain=9)
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--root", str(tmp_path), "--strict"]) == 1


def test_failure_shows_the_worst_ten_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(12):
        write_docstring(tmp_path, f"tests/test_{number:02}.py", marked=number + 2, plain=0)
    assert main(["--root", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "Files above their limits: 12." in printed
    assert printed.index("tests/test_11.py") < printed.index("tests/test_02.py")
    assert "tests/test_01.py" not in printed


def test_show_prints_every_marked_sentence_of_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_docstring(tmp_path, "app/core/pods.py", marked=2, plain=1)
    write_docstring(tmp_path, "app/core/pools.py", marked=1, plain=0)
    assert main(["--root", str(tmp_path), "--show", "app/core/pods.py"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "app/core/pods.py:1: tell: The leader tells the replicas.",
        "app/core/pods.py:2: tell: The leader tells the replicas.",
    ]


def test_unknown_path_is_a_wrong_argument(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--root", str(tmp_path), "--show", "app/missing.py"])
    assert ended.value.code == 2
