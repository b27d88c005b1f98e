"""Starts the Python programs of a local cluster as forks of one process with imported modules.

The imports of Fairgate take a second of CPU time, and the tests start hundreds of processes. A fork
has the environment, the files and the arguments of its program, and a session of its own. It runs
what `python -P -m MODULE` runs. All forks have one hash seed, so they iterate sets in one order:
tests/property checks that the order of decisions does not depend on the seed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

from app.devcluster.go_build import SOURCE
from app.devcluster.processes import Processes, Program
from tests.faults import clock

PYTHON = (sys.executable, "-P", "-m")
MODULES = (
    "app.cli.main",
    *(f"app.wiring.{name}" for name in ("serve", "webhook", "controller", "api")),
    *(f"tests.faults.observer.{name}" for name in ("follow", "chain", "redis_copy", "writers")),
)
NO_FORKS = "FAIRGATE_TEST_NO_FORKS"
"""If this variable is set, programs are executed: a measured start then includes the imports."""
LONGEST = 1 << 16
"""Bytes of a request."""


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Start Python programs by a fork until the end of the block, unless `NO_FORKS` is set."""
    if os.environ.get(NO_FORKS):
        yield
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [*PYTHON, __name__, str(theirs.fileno())]
    environment = {"PATH": os.defpath, "PYTHONPATH": str(SOURCE)}
    server = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
    )
    theirs.close()
    with ours, patch.object(Processes, "_spawn", _spawn_by(ours, Processes._spawn)):
        yield
    server.wait()


def _spawn_by(server: socket.socket, otherwise: Callable[..., int]) -> Callable[..., int]:
    one_at_a_time = Lock()

    def spawn(processes: Any, program: Program, log: Path, reading: int) -> int:
        # Modules that read the clock are imported after it is replaced.
        if program.argv[: len(PYTHON)] != PYTHON or clock.VARIABLE in program.environment:
            return otherwise(processes, program, log, reading)
        arguments, environment = program.argv[len(PYTHON) :], dict(program.environment)
        request = json.dumps([arguments, environment, str(log)]).encode()
        log.touch(0o600)
        with one_at_a_time:
            socket.send_fds(server, [request], [reading])
            return int(server.recv(LONGEST))

    return spawn


def main() -> None:
    """Fork for each request until the other end of the socket is closed."""
    server = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork stays a zombie
    while True:
        request, fds, _, _ = socket.recv_fds(server, LONGEST, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            server.close()
            arguments, environment, log = json.loads(request)
            _become(arguments, environment, log, fds[0])
        os.close(fds[0])
        server.send(str(pid).encode())


def _become(arguments: list[str], environment: dict[str, str], log: str, reading: int) -> None:
    """Run the module that the arguments begin with, once this process is recorded."""
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    with open(reading) as word:
        if word.readline() != "go\n":
            os._exit(1)
    os.chdir(Path(log).parents[1])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 1)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    code: object = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


if __name__ == "__main__":
    main()
