"""Runs the kubectl plugin as a person with credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from app.devcluster.kubectl import Kubectl
from app.devcluster.processes import child_environment
from tests.support.cluster_driver import Stage

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
        """Run kubectl; return its exit code and its output."""
        done = subprocess.run(
            [str(self.kubectl.program), *words],
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

    def json(self, *words: str) -> object:
        """Return the JSON output of the plugin."""
        code, out, err = self.fairgate(*words, "-o", "json")
        assert code == 0, err
        return json.loads(out)
