"""Runs the kubectl plugin as a person with credentials."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from app.devcluster.kubectl import Kubectl
from app.devcluster.processes import child_environment
from tests.support.cluster_driver import Stage
from tests.support.documented_lines import Command
from tests.support.terminal import missing

ROOT = Path(__file__).parents[2]

Told = tuple[int, str, str]


class Person:
    """A user with kubectl, and with the plugin on PATH."""

    def __init__(
        self, stage: Stage, name: str, namespace: str, kubectl: Kubectl | None = None
    ) -> None:
        self.kubectl = kubectl or stage.as_user(name, namespace)
        self._folder = stage.folder / f"bin-{name}"
        self._folder.mkdir()
        for program, module in (
            ("kubectl-fairgate", "app.kubectl.cli"),
            ("kubectl_complete-fairgate", "app.kubectl.completion"),
        ):
            file = self._folder / program
            file.write_text(f"#!{sys.executable}\nfrom {module} import main\nmain()\n")
            file.chmod(0o755)

    def run(self, *words: str) -> Told:
        """Run kubectl in its home folder; return its exit code and its output."""
        done = subprocess.run(
            [str(self.kubectl.program), *words],
            cwd=self.kubectl.home,
            env={
                **child_environment(self.kubectl.home),
                "PATH": f"{self._folder}:{os.defpath}",
                "KUBECONFIG": str(self.kubectl.kubeconfig),
                "PYTHONPATH": str(ROOT),
                "TZ": "UTC",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def fairgate(self, *words: str) -> Told:
        """Run the plugin through kubectl."""
        return self.run("fairgate", *words)

    def show(self, line: Command, code: int = 0, varies: str = "") -> None:
        """Run a command of a page, and require the words that the page shows, except `varies`."""
        found, out, err = self.run(*shlex.split(line.text)[1:])
        assert (found, err) == (code, ""), out
        assert missing(line, out, varies) == set(), out

    def json(self, *words: str) -> object:
        """Return the JSON output of the plugin."""
        code, out, err = self.fairgate(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)
