"""Starts a second scheduler from a configuration file of the documentation."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from app.devcluster.binaries import Tools
from app.devcluster.processes import child_environment
from tests.support.cluster_driver import Stage


@contextmanager
def second_scheduler(stage: Stage, tools: Tools, file: Path, name: str) -> Iterator[str]:
    """Run it with this file, except for its name and its cluster; yield its name."""
    kubeconfig = stage.cluster.folder / "config" / "kube-scheduler.kubeconfig"
    document = yaml.safe_load(file.read_text())
    document["clientConnection"]["kubeconfig"] = str(kubeconfig)
    document["leaderElection"] = {"leaderElect": False}
    document["profiles"][0]["schedulerName"] = name
    config = stage.folder / "scheduler.yaml"
    config.write_text(yaml.safe_dump(document))
    argv = [str(tools.scheduler), f"--config={config}", "--secure-port=0"]
    environment = child_environment(stage.folder)
    with (
        (stage.folder / "scheduler.log").open("w") as log,
        subprocess.Popen(argv, env=environment, stdout=log, stderr=log) as running,
    ):
        try:
            yield name
        finally:
            running.terminate()
