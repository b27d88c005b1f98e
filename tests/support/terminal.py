"""A shell with the programs and files that the pages name, and a comparison of outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from app.devcluster.go_build import SOURCE
from tests.support.documented_lines import Command

PYTHON_PROGRAMS = {
    "fairgate": "-m app",
    "kubectl-fairgate": "-m app.kubectl.cli",
    "python": "",
    "datamodel-codegen": "-m datamodel_code_generator",
}
FOLDERS = ("app", "charts", "docs", "loadtest", "tests")
END = "\x1e"
"""Ends the output of a command: ASCII, "record separator"."""


class Terminal:
    """A bash in a folder that looks like that of Fairgate's source after `make setup`.

    Variables stay from one command to the next. Commands of a page run as they are written there,
    except for the texts in `replace`.
    """

    def __init__(self, folder: Path, kubeconfig: Path | None = None, **programs: Path) -> None:
        self.folder = folder / "source"
        self.replace: dict[str, str] = {}
        found = self.folder / ".venv" / "bin"
        found.mkdir(parents=True)
        for name in FOLDERS:
            (self.folder / name).symlink_to(SOURCE / name)
        for name, arguments in PYTHON_PROGRAMS.items():
            self.program(name, f'exec {sys.executable} {arguments} "$@"')
        for name, path in programs.items():
            (found / name).symlink_to(path)
        self.environment = {
            "PATH": f"{found}:{os.defpath}",
            "HOME": str(folder),
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": str(SOURCE),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            "COLUMNS": "100",
            "TZ": "UTC",
        }
        self._shell: subprocess.Popen[str] | None = None

    def program(self, name: str, script: str) -> None:
        """Put a program on PATH that runs this script."""
        file = self.folder / ".venv" / "bin" / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)

    def run(self, command: Command | str, answers: str = "/dev/null") -> str:
        """Run a command and return its output. Fails if its exit code is not 0."""
        code, output = self.attempt(command, answers)
        assert code == 0, f"{command}: {output}"
        return output

    def attempt(self, command: Command | str, answers: str = "/dev/null") -> tuple[int, str]:
        """Run a command; return its exit code and its output. `answers` is its standard input."""
        text = command if isinstance(command, str) else command.text
        for shown, real in self.replace.items():
            text = text.replace(shown, real)
        shell = self._shell or self._start()
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{{ {text}\n}} 2>&1 <{answers}; printf '{END}%s\\n' $?\n")
        shell.stdin.flush()
        output = ""
        while END not in output:
            line = shell.stdout.readline()
            assert line, f"the shell ended: {text}"
            output += line
        output, _, code = output.partition(END)
        return int(code), output

    def close(self) -> None:
        """End the shell."""
        if self._shell is not None:
            self._shell.communicate()

    def _start(self) -> subprocess.Popen[str]:
        self._shell = subprocess.Popen(
            ["bash", "-o", "pipefail"], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        return self._shell


CHANGING = {
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[-0-9a-f.]+": "#",  # a uid
    r"\bMCow[\w+/=.]+": "#",  # a public key
    r"train-[a-z0-9]{5}(-[a-z0-9]{5})?\b": "train-#",  # generated names
    r"\d[\d.:TZ/-]*( (s|min|h)\b)?": "#",
    r"(?<=\s)-(?=\s)": "#",  # an absent value in a table
    r"\s+": " ",
}
"""Parts of outputs that differ between two runs."""


def shape(output: str, cut: str = "") -> str:
    """Return an output without numbers, generated names, widths, and what matches `cut`."""
    text = f"{output} "
    for part, mark in CHANGING.items():
        text = re.sub(part, mark, text)
    return re.sub(cut, "...", text).strip() if cut else text.strip()
