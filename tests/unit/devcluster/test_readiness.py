"""Free ports for programs that do not listen yet, and the conditions of readiness."""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import Mock

import pytest

from app.core.errors import ClusterError
from app.devcluster import readiness
from app.devcluster.api_client import SetupClient
from app.devcluster.readiness import free_ports, is_established

HOST = "127.0.0.1"


def test_reserved_port_cannot_be_taken_by_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    [given] = free_ports(1)
    monkeypatch.setattr(readiness, "PORTS", range(given, given + 1))
    with pytest.raises(ClusterError, match="No 1 ports are free"):
        free_ports(1)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind((HOST, given))


def test_owner_of_a_reserved_port_can_listen_on_it_repeatedly() -> None:
    [given] = free_ports(1)
    for _ in range(2):
        with (
            socket.create_server((HOST, given)) as server,
            socket.create_connection((HOST, given)) as there,
        ):
            here, _ = server.accept()
            with here:
                here.sendall(b"x")
                assert there.recv(1) == b"x"


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (None, False),
        ({}, False),
        ({"status": {"conditions": None}}, False),
        ({"status": {"conditions": [{"type": "Established", "status": "False"}]}}, False),
        ({"status": {"conditions": [{"type": "Established", "status": "True"}]}}, True),
    ],
)
def test_crd_is_established_only_if_its_condition_is_true(found: Any, wanted: bool) -> None:
    api = Mock(spec=SetupClient)
    api.find.return_value = found
    assert is_established(api, "tenants.fairgate.io") is wanted
