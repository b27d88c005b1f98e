"""A node is not started if it would collide with something on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.errors import ClusterError, InvalidInput
from app.devcluster.node import addresses, namespaces
from app.devcluster.node.namespaces import Namespaces, check_machine
from app.devcluster.processes import Processes

Links = list[dict[str, str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Links]:
    """The network devices and routes of a machine, by the object of `ip`."""
    has: dict[str, Links] = {
        "link": [{"ifname": "eth0"}],
        "route": [{"dst": "default"}, {"dst": "192.0.2.0/24"}, {"dst": "192.0.2.7"}],
    }

    def ip(argv: Sequence[str]) -> str:
        return json.dumps(next(has[word] for word in argv if word in has))

    monkeypatch.setattr(namespaces, "run", ip)
    return has


def test_a_machine_with_other_networks_can_have_a_node(
    machine: dict[str, Links], tmp_path: Path
) -> None:
    check_machine(tmp_path)


def test_a_second_node_is_refused_with_the_folder_of_the_first(
    machine: dict[str, Links], tmp_path: Path
) -> None:
    machine["link"].append({"ifname": addresses.DEVICE, "ifalias": "/home/first"})
    with pytest.raises(InvalidInput, match="already, in /home/first; take it down first"):
        check_machine(tmp_path)


def test_a_route_to_the_addresses_of_the_node_is_refused(
    machine: dict[str, Links], tmp_path: Path
) -> None:
    machine["route"].append({"dst": "198.18.0.0/16"})
    with pytest.raises(InvalidInput, match=r"route to 198\.18\.0\.0/16"):
        check_machine(tmp_path)


@pytest.mark.parametrize("folder", ["/run/node", "/var/lib/node", "/var/log/node"])
def test_a_folder_that_the_node_hides_is_refused(machine: dict[str, Links], folder: str) -> None:
    with pytest.raises(InvalidInput, match="name another folder by --dir"):
        check_machine(Path(folder))


def test_only_the_device_of_this_node_is_removed(
    machine: dict[str, Links], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deleted: list[tuple[str, ...]] = []
    monkeypatch.setattr(namespaces, "_ip", lambda *arguments: deleted.append(arguments))
    node = Namespaces(tmp_path, Processes(tmp_path))
    machine["link"].append({"ifname": addresses.DEVICE, "ifalias": "/home/other"})
    node.disconnect()
    assert deleted == []
    machine["link"][-1]["ifalias"] = str(tmp_path)
    node.disconnect()
    assert deleted == [("link", "delete", addresses.DEVICE)]


def test_a_program_cannot_enter_a_node_that_is_not_up(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="start one by `fairgate dev node up`"):
        Namespaces(tmp_path, Processes(tmp_path)).command("true")
