"""Both programs with a standard input or output that is closed, full or not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import IO, Any

import pytest

from app.cli.main import _outcome
from app.kubectl.cli import outcome

PROGRAMS = pytest.mark.parametrize("program", ["app", "app.kubectl"])
OUTCOMES = pytest.mark.parametrize("outcome_of", [_outcome, outcome])


def started(
    program: str, *words: str, stdout: int | IO[Any], **more: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", program, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        **more,
    )


@PROGRAMS
def test_output_to_a_full_disk_is_one_sentence_and_not_a_defect(program: str) -> None:
    with open("/dev/full", "w") as full:
        done = started(program, "--help", stdout=full)
    sentence = "fairgate: The output cannot be written: No space left on device.\n"
    assert (done.returncode, done.stderr) == (3, sentence)


@PROGRAMS
def test_output_without_a_reader_ends_the_program_as_a_signal_would(program: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = started(program, "--help", stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("program", "words"), [("app", ["simulate", "-"]), ("app.kubectl", ["try", "-f", "-"])]
)
def test_closed_standard_input_is_wrong_input(program: str, words: list[str]) -> None:
    done = started(program, *words, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.close(0))
    sentence = "fairgate: Standard input is closed; give a file, or open it.\n"
    assert (done.returncode, done.stderr) == (2, sentence)


@OUTCOMES
def test_characters_that_the_output_lacks_are_replaced(
    outcome_of: Callable[[Callable[[], Any]], int],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    with open(os.dup(1), "w", encoding="ascii") as plain:
        monkeypatch.setattr("sys.stdout", plain)
        assert outcome_of(lambda: print("2 é 8 GPUs")) == 0
    assert capfdbinary.readouterr().out == b"2 ? 8 GPUs\n"
