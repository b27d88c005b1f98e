"""Child processes are recorded before they run, and any process can find and identify a child."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.errors import ClusterError
from app.devcluster.processes import ChildProcess, Processes, Program, birth, is_alive

STUBBORN = 'trap "" TERM; echo ready; while :; do sleep 0.05; done'


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.stop_all()


def shell(name: str, script: str) -> Program:
    return Program(name, ("/bin/sh", "-c", script), {"PATH": os.environ["PATH"], "A": "1"})


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_child_runs_with_its_environment_and_log(processes: Processes) -> None:
    child = processes.start(shell("a", 'echo "A=$A HOME=$HOME"; pwd; exec sleep 60'))
    until(lambda: processes.log("a").read_text().count("\n") == 2)
    assert processes.log("a").read_text().startswith("A=1 HOME=\n")
    assert processes.alive() == [child]
    assert os.getsid(child.pid) == child.pid


def test_another_run_finds_and_stops_the_child(processes: Processes, tmp_path: Path) -> None:
    child = processes.start(shell("a", "exec sleep 60"))
    later = Processes(tmp_path)
    assert later.alive("a") == [child]
    later.stop_all()
    assert not is_alive(child)
    assert later.recorded() == []


def test_child_that_ignores_sigterm_is_killed(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.devcluster.processes.STOP_SECONDS", 0.2)
    child = processes.start(shell("a", STUBBORN))
    until(lambda: "ready" in processes.log("a").read_text())
    processes.stop([child])
    assert not is_alive(child)


def test_child_that_does_not_end_keeps_no_other_running(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.devcluster.processes.STOP_SECONDS", 1.0)
    monkeypatch.setattr("app.devcluster.processes.KILL_SECONDS", 1.0)
    other, stuck = [processes.start(shell(name, "exec sleep 60")) for name in ("other", "stuck")]
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, sign: pid == stuck.pid or kill(pid, sign))
    with pytest.raises(ClusterError, match=rf"SIGKILL: stuck \(pid {stuck.pid}\);"):
        processes.stop_all()
    assert not is_alive(other)
    assert processes.recorded() == [stuck]


def test_process_with_a_reused_pid_is_not_stopped(processes: Processes) -> None:
    child = processes.start(shell("a", "exec sleep 60"))
    stranger = ChildProcess("a", child.pid, f"{child.born}0", child.argv, {})
    processes.stop([stranger])
    assert is_alive(child)
    assert processes.alive() == [child]


def test_children_are_stopped_youngest_first(processes: Processes) -> None:
    for name in ("a", "b"):
        script = f'trap "echo {name} >> order; exit" TERM; echo ready; while :; do sleep 0.02; done'
        processes.start(shell(name, script))
        until(lambda name=name: "ready" in processes.log(name).read_text())  # type: ignore[misc]
    order = processes.log("a").parents[1] / "order"
    processes.stop_all()
    assert order.read_text().split() == ["b", "a"]


def test_restart_gives_a_new_process_with_the_same_command(processes: Processes) -> None:
    old = processes.start(shell("a", "exec sleep 60"))
    new = processes.restart(old, signal.SIGKILL)
    assert new.pid != old.pid
    assert (new.argv, new.environment) == (old.argv, old.environment)
    assert processes.alive() == [new]


def test_early_exit_is_reported_with_the_end_of_the_log(processes: Processes) -> None:
    child = processes.start(shell("a", "echo no such port >&2; exit 3"))
    until(lambda: not is_alive(child))
    with pytest.raises(ClusterError, match=r"a ended(.|\n)*no such port"):
        processes.check([child])


def test_program_does_not_run_before_it_is_recorded(tmp_path: Path) -> None:
    """The run is killed between fork and record: the child ends and leaves no trace."""
    script = f"""
import os, signal
from pathlib import Path
from app.devcluster.processes import Processes, Program
class Killed(Processes):
    def _write(self, children):
        print(children[-1].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
Killed(Path({str(tmp_path)!r})).start(Program("a", ("/bin/touch", "ran"), {{}}))
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    until(lambda: birth(int(killed.stdout)) is None)
    assert not (tmp_path / "ran").exists()
    assert Processes(tmp_path).recorded() == []


def test_zombie_counts_as_dead() -> None:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    until(lambda: birth(pid) is None)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
