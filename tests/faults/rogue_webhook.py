"""A webhook that sends invalid answers, over TLS with the real webhook's certificate."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HOST = "127.0.0.1"
OPEN_SECONDS = 60.0

Answer = Callable[[str], bytes]
"""Maps the uid of a review to the complete bytes of the answer."""


def _http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _verdict(uid: str, **response: object) -> bytes:
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": True, **response},
    }
    return _http(json.dumps(review).encode())


def _patched(uid: str, *operations: object) -> bytes:
    patch = b64encode(json.dumps(operations).encode()).decode()
    return _verdict(uid, patchType="JSONPatch", patch=patch)


def _other_gate(uid: str) -> bytes:
    gates = [{"name": "example.com/another"}]
    return _patched(uid, {"op": "add", "path": "/spec/schedulingGates", "value": gates})


LIES: dict[str, Answer] = {
    "garbage": lambda uid: _http(b"\x00\xff not what was asked for"),
    "no answer at all": lambda uid: _http(b""),
    "an array": lambda uid: _http(b"[]"),
    "a page": lambda uid: _http(b"<html>Welcome</html>", kind="text/html"),
    "a wrong uid": lambda uid: _verdict("00000000-0000-0000-0000-000000000000"),
    "another's review": lambda uid: _http(b'{"apiVersion": "v1", "kind": "Status"}'),
    "500": lambda uid: _http(b"it hurts", "500 Internal Server Error"),
    "503": lambda uid: _http(b"later", "503 Service Unavailable"),
    "elsewhere": lambda uid: (
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: https://127.0.0.1:1/\r\n"
        b"content-length: 0\r\n\r\n"
    ),
    "yes": _verdict,
    "yes, and another gate": _other_gate,
    "a patch that does not fit": lambda uid: _patched(uid, {"op": "remove", "path": "/spec/none"}),
    "a patch that is none": lambda uid: _verdict(uid, patchType="JSONPatch", patch="bm90IGpzb24="),
    "half an answer": lambda uid: _verdict(uid)[:-20],
}


class Liar:
    """Listens at `port`; use with `with`. The answer can be changed at any time."""

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        self.asked = 0
        self._answer: Answer = LIES["garbage"]
        self._whole = True
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder, "crt"), Path(folder, "key")
            certificate.write_bytes(certificate_pem)
            key.write_bytes(key_pem)
            self._tls.load_cert_chain(certificate, key)
        self._listening = socket.create_server((HOST, 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self._over = threading.Event()
        self._serving: list[tuple[threading.Thread, socket.socket]] = []
        self._thread = threading.Thread(target=self._accept, name="liar", daemon=True)

    def __enter__(self) -> Liar:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()
        for thread, taken in self._serving:
            with contextlib.suppress(OSError):
                taken.shutdown(socket.SHUT_RDWR)
            thread.join(OPEN_SECONDS)
            assert not thread.is_alive(), "a connection of the webhook does not end"

    def tell(self, answer: Answer, *, whole: bool = True) -> None:
        """Set the answer. If not `whole`, only half of its last TLS record is sent."""
        self._answer, self._whole = answer, whole

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                taken, _ = self._listening.accept()
            except OSError:
                return
            serving = threading.Thread(target=self._serve, args=(taken,), daemon=True)
            self._serving.append((serving, taken))
            serving.start()

    def _serve(self, taken: socket.socket) -> None:
        taken.settimeout(OPEN_SECONDS)
        with taken, contextlib.suppress(OSError, ValueError):
            Talk(taken, self._tls).run(self._reply)

    def _reply(self, uid: str) -> tuple[bytes, bool]:
        self.asked += 1
        return self._answer(uid), self._whole


class Talk:
    """One connection. TLS is done in memory, so that half a record can be sent."""

    def __init__(self, taken: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = taken
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)

    def run(self, reply: Callable[[str], tuple[bytes, bool]]) -> None:
        """Answer reviews until the client closes. Raises OSError, ValueError."""
        self._insist(self._tls.do_handshake)
        while True:
            answer, whole = reply(self._review())
            self._tls.write(answer)
            record = self._out.read()
            if not whole:
                self._socket.sendall(record[: len(record) // 2])
                return
            self._socket.sendall(record)

    def _review(self) -> str:
        """Read one request and return the uid of its review."""
        read = b""
        while b"\r\n\r\n" not in read:
            read += self._received()
        head, _, body = read.partition(b"\r\n\r\n")
        fields = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += self._received()
        return str(json.loads(body)["request"]["uid"])

    def _received(self) -> bytes:
        """Return the next bytes. Raises OSError at the end of the connection."""
        data = self._insist(lambda: self._tls.read(65536))
        if not data:
            raise ConnectionResetError("the other side closed TLS")
        return data

    def _insist(self, step: Callable[[], T]) -> T:
        while True:
            try:
                done = step()
            except ssl.SSLWantReadError:
                self._flush()
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionResetError("the other side hung up") from None
                self._in.write(data)
            else:
                self._flush()
                return done

    def _flush(self) -> None:
        if data := self._out.read():
            self._socket.sendall(data)
