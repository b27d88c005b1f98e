"""A second scheduler beside that of the cluster, set up by a file of the docs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from app.dev.tools import Tools
from tests.e2e.stage import Stage


@contextmanager
def second_scheduler(stage: Stage, tools: Tools, file: Path, name: str) -> Iterator[str]:
    """Run it by this file, but for its name and its cluster; give its name."""
    kubeconfig = stage.cluster.folder / "config" / "kube-scheduler.kubeconfig"
    document = yaml.safe_load(file.read_text())
    document["clientConnection"]["kubeconfig"] = str(kubeconfig)
    document["leaderElection"] = {"leaderElect": False}
    document["profiles"][0]["schedulerName"] = name
    config = stage.folder / "scheduler.yaml"
    config.write_text(yaml.safe_dump(document))
    argv = [str(tools.scheduler), f"--config={config}", "--secure-port=0"]
    environment = {"PATH": os.defpath, "HOME": str(stage.folder)}
    with (
        (stage.folder / "scheduler.log").open("w") as log,
        subprocess.Popen(argv, env=environment, stdout=log, stderr=log) as running,
    ):
        try:
            yield name
        finally:
            running.terminate()
