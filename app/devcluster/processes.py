"""Recorded child processes: any later run can stop the processes that one run started.

A child starts as a shell that waits on a pipe. It becomes the program only after it is recorded.
If the parent dies before that, the pipe closes and the shell ends. A crash therefore leaves no
unrecorded process.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path

import msgspec

from app.core.errors import ClusterError
from app.devcluster.state_files import StateUnreadable, read_record
from app.tls.certificate_authority import write_private

RECORD = "processes.json"
STOP_SECONDS = 8.0
KILL_SECONDS = 5.0
POLL_SECONDS = 0.02
LAST_LINES = 8

BECOME = 'read -r word && [ "$word" = go ] && cd "$0" && exec "$@" </dev/null'


_CHILD = re.compile(rb'"name":"([ -~]*?)","pid":(\d{1,9}),"born":"([ -~]*?)"')
"""The first fields of a child in the record, in the order of `ChildProcess`."""


class ChildProcess(msgspec.Struct, frozen=True):
    """One child. `born` distinguishes it from a later process with the same pid."""

    name: str
    pid: int
    born: str
    argv: tuple[str, ...]
    environment: dict[str, str]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start. `environment` is its whole environment."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]


def child_environment(home: Path) -> dict[str, str]:
    """Return the environment of a program whose files are in `home`.

    A proxy or a KUBECONFIG of the caller would mislead the program. `GOGC` is passed on: a higher
    value costs memory and saves CPU time.
    """
    passed = {name: os.environ[name] for name in ("GOGC",) if name in os.environ}
    return {"PATH": os.defpath, "HOME": str(home), **passed}


class Processes:
    """The children recorded in one folder. Safe to use from several programs at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, program: Program) -> ChildProcess:
        """Start a program in its own session. Its output goes to `logs/NAME.log`."""
        log = self.log(program.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        try:
            # An interrupt in here closes the pipe, which ends a shell that is not recorded yet.
            with open(reading, "rb", 0) as waiting, open(writing, "wb", 0) as word:
                pid = self._spawn(program, log, waiting.fileno())
                child = ChildProcess(
                    program.name, pid, birth(pid) or "", program.argv, dict(program.environment)
                )
                with self._locked():
                    self._write([*self.recorded(), child])
                word.write(b"go\n")
        except OSError as error:
            raise ClusterError(f"{program.name} cannot be started: {error}.") from error
        return child

    def recorded(self) -> list[ChildProcess]:
        """Return all recorded children, running or not, oldest first. Raises StateUnreadable."""
        return read_record(self._folder, RECORD, list[ChildProcess]) or []

    def alive(self, name: str | None = None) -> list[ChildProcess]:
        """Return the running children, oldest first; if `name` is given, only with that name."""
        chosen = (child for child in self.recorded() if name in (None, child.name))
        return [child for child in chosen if is_alive(child)]

    def stop(self, children: Sequence[ChildProcess], sign: int = signal.SIGTERM) -> None:
        """End these children, the youngest first, and remove them from the record.

        Each receives `sign` and, after `STOP_SECONDS`, SIGKILL. Returns when all are gone. A child
        that does not end within `KILL_SECONDS` delays the others only. Raises ClusterError if it
        still runs when the others are gone; it stays in the record.
        """
        slow = [child for child in reversed(children) if not _end(child, sign)]
        running = [child for child in slow if is_alive(child)]
        gone = {(c.pid, c.born) for c in children if c not in running}
        with self._locked():
            self._write([c for c in self.recorded() if (c.pid, c.born) not in gone])
        if running:
            names = ", ".join(f"{child.name} (pid {child.pid})" for child in running)
            raise ClusterError(
                f"Still running after SIGKILL: {names}; all else has ended. Run this again, or end "
                "them by hand."
            )

    def stop_all(self, sign: int = signal.SIGTERM) -> None:
        """End every recorded child. Of a damaged record, end those that can be read."""
        try:
            children = self.recorded()
        except StateUnreadable:
            children = self._repair()
        self.stop(children, sign)

    def restart(self, child: ChildProcess, sign: int = signal.SIGTERM) -> ChildProcess:
        """End a child if it runs, and start it again with the same arguments."""
        self.stop([child], sign)
        return self.start(Program(child.name, child.argv, child.environment))

    def check(self, children: Sequence[ChildProcess]) -> None:
        """Raise ClusterError, with the last lines of its log, if a child has died."""
        for child in children:
            if not is_alive(child):
                tail = last_lines(self.log(child.name)) or "(it wrote nothing)"
                raise ClusterError(
                    f"{child.name} ended while it was needed; the last lines of its log "
                    f"({self.log(child.name)}):\n{tail}"
                )

    def log(self, name: str) -> Path:
        """Return the log file of the children of one name."""
        return self._folder / "logs" / f"{name}.log"

    def _spawn(self, program: Program, log: Path, reading: int) -> int:
        into = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            "/bin/sh",
            ["/bin/sh", "-c", BECOME, str(self._folder), *program.argv],
            dict(program.environment),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), into, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            # Python ignores these signals; a program expects the defaults of the kernel.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
        )

    def _write(self, children: Sequence[ChildProcess]) -> None:
        write_private(self._folder / RECORD, msgspec.json.encode(children))

    def _repair(self) -> list[ChildProcess]:
        """Replace a damaged record by the children in it that can be read, and return them."""
        with self._locked():
            found = [
                ChildProcess(name.decode(), int(pid), born.decode(), (), {})
                for name, pid, born in _CHILD.findall((self._folder / RECORD).read_bytes())
            ]
            self._write(found)
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / ".record.lock").open("w") as lock:
            flock(lock, LOCK_EX)
            yield


def birth(pid: int) -> str | None:
    """Return the start of a process as a word that is unique among processes with this pid.

    None if there is no such process, or only a zombie.
    """
    try:
        # The program name in parentheses may itself contain spaces and parentheses.
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    state, threads, started = facts[0], facts[17], facts[19]
    # A killed program is a zombie while its other threads still hold its ports.
    return None if state in "ZX" and int(threads) <= 1 else f"{boot}/{started}"


def is_alive(child: ChildProcess) -> bool:
    """Return whether this process runs, and not a later one with its pid."""
    # A dead child stays a zombie until its parent waits for it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, os.WNOHANG)
    return birth(child.pid) == child.born


def last_lines(log: Path, count: int = LAST_LINES) -> str:
    """Return the last lines of a log; empty string if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError:
        return ""


def _end(child: ChildProcess, sign: int) -> bool:
    """Return whether the child ended in time."""
    for signal_number, seconds in ((sign, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        if not _send(child, signal_number):
            return True
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not is_alive(child):
                return True
            time.sleep(POLL_SECONDS)
    return False


def _send(child: ChildProcess, sign: int) -> bool:
    """Signal this process; False if it is gone."""
    if not is_alive(child):
        return False
    try:
        os.kill(child.pid, sign)
    except ProcessLookupError:
        return False
    return True
