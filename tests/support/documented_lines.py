"""Runs the shell lines that docs/operations.md shows, as a reader would."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from app.devcluster.go_build import SOURCE

OPERATIONS = SOURCE / "docs" / "operations.md"


def run_documented(about: str, kubectl: Path | str, kubeconfig: Path) -> None:
    """Run the first shell lines that follow a sentence of docs/operations.md."""
    shown = r".*?\n\n((?: {4}[^\n]+\n)+)"
    found = re.search(re.escape(about) + shown, OPERATIONS.read_text(), re.DOTALL)
    assert found is not None, about
    program = f"{kubectl} --kubeconfig {shlex.quote(str(kubeconfig))}"
    script = f'kubectl() {{ {program} "$@"; }}\n{found[1]}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
