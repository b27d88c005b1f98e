"""Runs programs of Fairgate in the process of the test, a tenth of the time of a new process."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import pytest

from app.cli.main import main


def run(
    program: Callable[[], None], *arguments: str | Path, stdin: str = "", **variables: str
) -> CompletedProcess[str]:
    """Run a program and return its exit code and output. The `FAIRGATE_` variables are removed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRGATE_")}
    line = ["fairgate", *map(str, arguments)]
    told, failed = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", line),
        patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        patch.dict(os.environ, environment | variables, clear=True),
        redirect_stdout(told),
        redirect_stderr(failed),
        pytest.raises(SystemExit) as leaving,
    ):
        program()
    assert isinstance(leaving.value.code, int)
    return CompletedProcess(line, leaving.value.code, told.getvalue(), failed.getvalue())


fairgate = partial(run, main)
