"""The namespaces of the node: mounts, network and processes.

A holder process starts first and is the first process (pid 1) of the PID namespace. The other
programs enter its namespaces. SIGKILL for the holder ends all of them, and every container.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from app.core.errors import ClusterError, InvalidInput
from app.devcluster.node import addresses
from app.devcluster.node.requirements import SYSTEM_PATH
from app.devcluster.processes import ChildProcess, Processes, Program
from app.devcluster.readiness import wait_until

HOLDER = "namespaces"
READY_SECONDS = 20.0
HIDDEN = (Path("/var/lib"), Path("/var/log"), Path("/run"))
"""Folders of this machine that the node does not see: it has its own."""

SET_UP = """
folder=$1 pause=$2
mount --make-rshared /
mkdir -p "$folder/var/lib" "$folder/var/log"
mount --bind "$folder/var/lib" /var/lib
mount --bind "$folder/var/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch "$folder/namespaces"
exec "$pause"
"""


class Namespaces:
    """The namespaces of the node of one folder."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self._folder = folder
        self._processes = processes

    def create(self, pause: Path) -> None:
        """Start the holder, and connect the node to this machine. Raises ClusterError."""
        argv = (
            *("unshare", "--mount", "--propagation", "slave", "--net", "--pid", "--fork"),
            *("--kill-child", "--mount-proc", "sh", "-ec", SET_UP),
            *(HOLDER, str(self._folder), str(pause)),
        )
        holder = self._processes.start(Program(HOLDER, argv, {"PATH": SYSTEM_PATH}))
        wait_until(
            {"the namespaces of the node": (self._folder / "namespaces").exists},
            seconds=READY_SECONDS,
            check=lambda: self._processes.check([holder]),
        )
        self._connect(holder)

    def command(self, *argv: str) -> tuple[str, ...]:
        """Return the command line that runs a program in the namespaces. Raises ClusterError."""
        holders = self._processes.alive(HOLDER)
        if not holders:
            raise ClusterError(
                f"No node is up in {self._folder}; start one by `fairgate dev node up`."
            )
        own = f"/proc/{holders[-1].pid}/ns"
        entered = (f"--mount={own}/mnt", f"--net={own}/net", f"--pid={own}/pid_for_children")
        return ("nsenter", *entered, "--", *argv)

    def start(self, name: str, *argv: str) -> ChildProcess:
        """Start a recorded program in the namespaces."""
        environment = {"PATH": SYSTEM_PATH, "HOME": str(self._folder)}
        return self._processes.start(Program(name, self.command(*argv), environment))

    def disconnect(self) -> None:
        """Remove the network device. The kernel would remove it later than the last process."""
        for link in _list("link", "show"):
            if link["ifname"] == addresses.DEVICE and link.get("ifalias") == str(self._folder):
                with contextlib.suppress(ClusterError):  # the kernel was faster
                    _ip("link", "delete", addresses.DEVICE)

    def _connect(self, holder: ChildProcess) -> None:
        device, uplink = addresses.DEVICE, addresses.UPLINK
        host, node = (f"{own}/{addresses.LINK_BITS}" for own in (addresses.HOST, addresses.NODE))
        peer = ("peer", "name", uplink, "netns", str(holder.pid))
        _ip("link", "add", device, "type", "veth", *peer)
        _ip("link", "set", device, "up", "alias", str(self._folder))
        _ip("address", "add", host, "dev", device)
        for arguments in (
            ("address", "add", node, "dev", uplink),
            ("link", "set", uplink, "up"),
            ("route", "add", "default", "via", addresses.HOST),
        ):
            run(self.command("ip", *arguments))
        for network in (addresses.PODS, addresses.SERVICES):
            _ip("route", "add", network, "via", addresses.NODE)


def check_machine(folder: Path) -> None:
    """Raise InvalidInput if a node of this folder would collide with something on this machine."""
    for hidden in HIDDEN:
        if folder.resolve().is_relative_to(hidden.resolve()):
            raise InvalidInput(
                f"The folder of a node cannot be in {hidden}, which the node replaces by its own; "
                "name another folder by --dir."
            )
    for link in _list("link", "show"):
        if link["ifname"] == addresses.DEVICE:
            raise InvalidInput(
                f"The network device {addresses.DEVICE} exists: a node is up already, in "
                f"{link.get('ifalias', 'an unknown folder')}; take it down first by "
                "`fairgate dev node down --dir FOLDER`."
            )
    wanted = [ip_network(f"{addresses.HOST}/{addresses.LINK_BITS}", strict=False)]
    wanted += [ip_network(addresses.PODS), ip_network(addresses.SERVICES)]
    for route in _list("-4", "route", "show", "table", "all"):
        target = route["dst"]
        if target != "default" and any(ip_network(target).overlaps(own) for own in wanted):
            raise InvalidInput(
                f"This machine has a route to {target}, which the node needs for itself "
                f"(198.18.0.0/15); remove it by `ip route del {target}`."
            )


def run(argv: Sequence[str], stdin: int | None = subprocess.DEVNULL) -> str:
    """Run a program to its end and return its output. Raises ClusterError if it fails."""
    done = subprocess.run(
        argv,
        env={"PATH": SYSTEM_PATH},
        stdin=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise ClusterError(f"{' '.join(argv)} failed ({done.returncode}): {said}")
    return done.stdout


def _ip(*arguments: str) -> None:
    run(("ip", *arguments))


def _list(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(("ip", "-json", *arguments)) or "[]")
    return found
