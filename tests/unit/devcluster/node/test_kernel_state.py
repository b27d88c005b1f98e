"""Settings of the kernel and cgroups are put back when a node goes down."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster.node import kernel_state
from app.devcluster.node.component_files import CGROUP


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with settings in `sys` and two hierarchies of cgroup v1."""
    for name in kernel_state.SETTINGS:
        setting = tmp_path / "sys" / name
        setting.parent.mkdir(parents=True, exist_ok=True)
        setting.write_text("0\n")
    for name in ("cpu", "cpuset"):
        (tmp_path / "cgroup" / name).mkdir(parents=True)
        (tmp_path / "cgroup" / name / "cgroup.procs").touch()
    monkeypatch.setattr(kernel_state, "_setting", lambda name: tmp_path / "sys" / name)
    monkeypatch.setattr(kernel_state, "CGROUPS", tmp_path / "cgroup")
    return tmp_path


def test_a_changed_setting_is_put_back_once(kernel: Path) -> None:
    record, panic = kernel / "kernel.json", kernel / "sys" / "kernel" / "panic"
    kernel_state.prepare(record)
    panic.write_text("10\n")
    kernel_state.prepare(record)  # after a crash: the first record counts
    kernel_state.restore(record)
    assert panic.read_text() == "0"
    panic.write_text("5\n")
    kernel_state.restore(record)
    assert panic.read_text() == "5\n"


def test_every_cgroup_of_the_node_is_removed(kernel: Path) -> None:
    kernel_state.prepare(kernel / "kernel.json")
    groups = [kernel / "cgroup" / name / CGROUP for name in ("cpu", "cpuset")]
    for group in groups:
        (group / "kubepods" / "pod-1").mkdir(parents=True)
    kernel_state.restore(kernel / "kernel.json")
    assert not any(group.exists() for group in groups)


def test_cgroup_of_the_pods_has_more_cpu_shares_than_the_default(kernel: Path) -> None:
    shares = kernel / "cgroup" / "cpu" / CGROUP / "cpu.shares"
    shares.parent.mkdir()
    shares.write_text("1024")  # as the kernel creates it
    kernel_state.prepare(kernel / "kernel.json")
    assert int(shares.read_text()) > 1024


def test_cgroup_that_stays_in_use_is_reported(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_state, "EMPTY_SECONDS", 0.0)
    kernel_state.prepare(kernel / "kernel.json")
    (kernel / "cgroup" / "cpu" / CGROUP / "busy").touch()
    with pytest.raises(ClusterError, match="cannot be removed"):
        kernel_state.restore(kernel / "kernel.json")
