"""A machine that cannot run a node is told what is missing and how to get it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.core.errors import ToolMissing
from app.devcluster.node import requirements

ROOT = 0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with every program and plugin, used as root; the folder of its plugins."""
    monkeypatch.setattr(os, "geteuid", lambda: ROOT)
    monkeypatch.setattr(shutil, "which", lambda program, **_: f"/usr/bin/{program}")
    monkeypatch.setattr(requirements, "CNI_FOLDERS", (tmp_path,))
    for plugin in requirements.CNI_PLUGINS:
        (tmp_path / plugin).touch(mode=0o755)
    return tmp_path


def test_a_machine_with_all_packages_can_run_a_node(machine: Path) -> None:
    assert requirements.missing() is None
    assert requirements.cni_folder() == machine


def test_missing_root_rights_are_reported(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert str(requirements.missing()).startswith("A real node needs root;")


def test_missing_packages_are_named_with_the_command_that_installs_them(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacks = ("nft", "ctr", "containerd")
    monkeypatch.setattr(
        shutil, "which", lambda program, **_: None if program in lacks else f"/usr/bin/{program}"
    )
    (machine / "ptp").unlink()
    assert requirements.missing() == (
        "A real node needs the missing packages containerd, containernetworking-plugins, nftables; "
        "on Debian: apt-get install --no-install-recommends containerd containernetworking-plugins "
        "nftables."
    )
    with pytest.raises(ToolMissing, match="containernetworking-plugins"):
        requirements.cni_folder()


def test_missing_go_compiler_is_reported_unless_the_modules_are_built(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda program, **_: None if program == "go" else f"/usr/bin/{program}"
    )
    monkeypatch.setattr(requirements, "is_built", lambda module: False)
    assert "install Go" in str(requirements.missing())
    monkeypatch.setattr(requirements, "is_built", lambda module: True)
    assert requirements.missing() is None
