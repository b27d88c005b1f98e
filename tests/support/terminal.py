"""A shell with the programs and files that the pages name, and a comparison of outputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from app.devcluster.cluster import LocalCluster
from app.devcluster.go_build import SOURCE
from tests.support.cluster_driver import NeverTrueError, until
from tests.support.documented_lines import Command

PYTHON_PROGRAMS = {
    "fairgate": "-m app",
    "kubectl-fairgate": "-c 'from app.kubectl.cli import main; main()'",
    "python": "",
    "datamodel-codegen": "-m datamodel_code_generator",
}
FOLDERS = ("app", "charts", "docs", "loadtest", "tests")
END = "\x1e"
"""Ends the output of a command: ASCII, "record separator"."""

TYPED = "import os,pty,sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
WORD = re.compile(r"(?<![\w-])[A-Za-z]{2,}(?![\w]|[-/]\w)")


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
            "XDG_STATE_HOME": str(folder / ".local" / "state"),
            "COLUMNS": "100",
            "TZ": "UTC",
        }
        self._shell: subprocess.Popen[str] | None = None

    def program(self, name: str, script: str) -> None:
        """Put a program on PATH that runs this script."""
        file = self.folder / ".venv" / "bin" / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)

    def run(self, command: Command | str) -> str:
        """Run a command and return its output. Fails if its exit code is not 0."""
        code, output = self.attempt(command)
        assert code == 0, f"{command}: {output}"
        return output

    def attempt(self, command: Command | str) -> tuple[int, str]:
        """Run a command; return its exit code and its output. Its standard input is empty."""
        text = command if isinstance(command, str) else command.text
        for shown, real in self.replace.items():
            text = text.replace(shown, real)
        shell = self._shell or self._start()
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(f"{{ {text}\n}} 2>&1 </dev/null; printf '{END}%s\\n' $?\n")
        shell.stdin.flush()
        output = ""
        while END not in output:
            line = shell.stdout.readline()
            assert line, f"the shell ended: {text}"
            output += line
        output, _, code = output.partition(END)
        return int(code), output

    def show(self, command: Command, code: int = 0, varies: str = "") -> str:
        """Run a command until its output has the words that its page shows, and return the output.

        `varies`: words that need not occur, because they depend on the state of the cluster.
        """
        output = ""

        def is_as_shown() -> bool:
            nonlocal output
            found, output = self.attempt(command)
            assert "Traceback" not in output, output
            assert found in (code, 1), f"{command.text}: exit code {found}\n{output}"
            return found == code and not missing(command, output, varies)

        try:
            until(command.text, is_as_shown)
        except NeverTrueError as error:
            lacks = sorted(missing(command, output, varies))
            raise AssertionError(f"{error}\nwithout {lacks}:\n{output}") from None
        return output

    def type_yes(self, start: str) -> None:
        """Answer the questions of later commands with this start, as a person at a terminal."""
        self.program("typed", f"exec {sys.executable} -c '{TYPED}' \"$@\" <<< y")
        self.replace[start] = f"typed {start}"

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


def terminal_on(cluster: LocalCluster, folder: Path) -> Terminal:
    """Return a shell of the administrator of a cluster, which is the one of `fairgate dev`."""
    details = cluster.details()
    found = Terminal(folder, cluster.kubeconfig, kubectl=Path(details.kubectl))
    state = folder / ".local" / "state" / "fairgate"
    state.mkdir(parents=True)
    (state / "dev").symlink_to(cluster.folder)
    (found.folder / "ca.crt").symlink_to(str(details.ca))
    found.replace = {
        " ... ": ' -sS --cacert ca.crt -H "Authorization: Bearer $TOKEN" ',
        "redis://HOST:6379/0": details.redis,
        "--redis-url URL": f"--redis-url {details.redis}",
        "https://fairgate-api.fairgate-system.svc": str(details.api),
    }
    found.environment["URL"] = str(details.api)
    return found


def missing(command: Command, output: str, varies: str = "") -> set[str]:
    """Return the words of the shown output that an output lacks, except for words in `varies`.

    Numbers, names with digits and parts of longer names do not count.
    """
    plain = CONTROL.sub("", output)
    return {*WORD.findall(command.output)} - {*WORD.findall(plain)} - {*varies.split()}
