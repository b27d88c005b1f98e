"""Runs kubectl as the cluster administrator."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import ClusterError
from app.devcluster.processes import child_environment

TIMEOUT_SECONDS = 120

LONGEST_SAID = 2000
"""Bytes of output that are reported if kubectl times out."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with one kubeconfig; `home` is the folder of its cache."""

    program: Path
    kubeconfig: Path
    home: Path

    def run(self, *args: str, stdin: str | None = None) -> str:
        """Return its standard output. Raises ClusterError with its error output if it fails."""
        try:
            done = subprocess.run(
                [str(self.program), "--kubeconfig", str(self.kubeconfig), *args],
                input="" if stdin is None else stdin,
                env=child_environment(self.home),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = ((error.stdout or b"") + (error.stderr or b""))[-LONGEST_SAID:]
            raise ClusterError(
                f"kubectl {args[0]} did not end within {TIMEOUT_SECONDS} s; it had said "
                f"{said.decode(errors='replace').strip() or 'nothing'}."
            ) from error
        except OSError as error:
            raise ClusterError(f"kubectl {args[0]} did not start: {error}.") from error
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, documents: str) -> str:
        """Apply manifests on the server, taking over fields that others had set."""
        return self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=documents)
