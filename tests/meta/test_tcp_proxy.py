"""The TCP proxy forwards faithfully until a fault is requested, and then fails as requested."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.tcp_proxy import Cable

SOON = 10.0


class Echo(socketserver.BaseRequestHandler):
    """Echoes its input, after the port of the server."""

    def handle(self) -> None:
        while heard := self.request.recv(65536):
            self.request.sendall(heard)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@pytest.fixture
def echo() -> Iterator[int]:
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def cable(echo: int) -> Iterator[Cable]:
    with Cable("127.0.0.1", echo) as cable:
        yield cable


def dial(cable: Cable) -> socket.socket:
    return socket.create_connection(("127.0.0.1", cable.port), timeout=SOON)


def says(line: socket.socket, word: bytes) -> bytes:
    line.sendall(word)
    return line.recv(100)


def broken(line: socket.socket) -> bool:
    try:
        line.sendall(b"?")
        return line.recv(100) == b""
    except ConnectionError:
        return True


def silent(line: socket.socket) -> bool:
    line.settimeout(0.2)
    try:
        line.recv(100)
    except TimeoutError:
        return True
    finally:
        line.settimeout(SOON)
    return False


def test_whole_cable_carries_much(cable: Cable) -> None:
    much = b"x" * 3_000_000
    with dial(cable) as line:
        sender = threading.Thread(target=line.sendall, args=(much,))
        sender.start()
        heard = 0
        while heard < len(much):
            heard += len(line.recv(65536))
        sender.join()


def test_dropped_connection_breaks_and_the_next_passes(cable: Cable) -> None:
    with dial(cable) as line:
        assert says(line, b"a") == b"a"
        cable.drop()
        assert broken(line)
    with dial(cable) as line:
        assert says(line, b"b") == b"b"


def test_cut_cable_breaks_new_connections_until_mended(cable: Cable) -> None:
    cable.cut()
    with dial(cable) as line:
        assert broken(line)
    cable.mend()
    with dial(cable) as line:
        assert says(line, b"b") == b"b"


def test_frozen_cable_keeps_connections_and_delivers_after_thaw(cable: Cable) -> None:
    with dial(cable) as line:
        assert says(line, b"a") == b"a"
        cable.freeze()
        with dial(cable) as new:
            for each in (line, new):
                each.sendall(b"b")
                assert silent(each)
            cable.thaw()
            assert line.recv(100) == new.recv(100) == b"b"


def test_cable_with_frozen_replies_delivers_requests(cable: Cable) -> None:
    with dial(cable) as line:
        assert says(line, b"a") == b"a"
        cable.freeze(replies_only=True)
        carried = cable.carried
        line.sendall(b"b")
        assert silent(line)
        assert cable.carried == carried + 1
        cable.thaw()
        assert line.recv(100) == b"b"


def test_lost_reply_ends_its_connection(cable: Cable) -> None:
    cable.lose(1)
    with dial(cable) as line:
        assert broken(line)
    assert cable.lost == 1
    with dial(cable) as line:
        assert says(line, b"b") == b"b"


def test_slow_cable_is_slow_both_ways(cable: Cable) -> None:
    cable.delay(0.1)
    began = time.monotonic()
    with dial(cable) as line:
        assert says(line, b"a") == b"a"
    assert time.monotonic() - began >= 0.2


def test_target_that_is_gone_is_passed_over(cable: Cable, echo: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = probe.getsockname()[1]
        cable.route(("127.0.0.1", nobody), ("127.0.0.1", echo))
        for _ in range(4):
            with dial(cable) as line:
                assert says(line, b"a") == b"a"
