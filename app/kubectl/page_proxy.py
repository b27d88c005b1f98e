"""A proxy on the loopback through which a browser opens the page with the caller's kubeconfig.

The first request carries a token that is valid once, and gets a cookie. Each further request needs
the cookie, and a Host header of the loopback, so that no other page of the browser can use it.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import inet_aton
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import urllib3

from app.core.errors import ClusterUnavailable
from app.kubectl.client import ApiClient

ADDRESS = "127.0.0.1"
LARGEST_BODY = 1024 * 1024
LONGEST_NUMBER = 20
"""Digits of a length. Python refuses to read numbers of thousands of digits."""

CHUNK = 64 * 1024
IDLE_SECONDS = 60
"""A connection without a request for this long is closed."""

CONNECTIONS = tuple(Path("/proc/net", name) for name in ("tcp", "tcp6"))
"""The TCP connections of Linux, with state and user of each socket."""
_ESTABLISHED = "01"

_SENT = ("accept", "accept-encoding", "content-type", "if-match", "if-none-match")
"""Request headers that are passed on. Cookies and credentials of the browser are not."""

_DROPPED = (
    *("connection", "keep-alive", "transfer-encoding", "content-length"),
    *("date", "server", "set-cookie"),
)


class PageProxy:
    """The proxy. `address`: the address of the page, with the token that is valid once."""

    def __init__(self, client: ApiClient, port: int = 0) -> None:
        """`port`: 0 means any free port. Raises OSError."""
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        self._client = client
        self._token: str | None = secrets.token_urlsafe(32)
        self._session = secrets.token_urlsafe(32)
        self._lock = Lock()
        self._server = _Server((ADDRESS, port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.address = f"http://{ADDRESS}:{self.port}/?token={self._token}"

    def serve(self) -> None:
        """Serve until `close`, or an exception such as KeyboardInterrupt."""
        self._server.serve_forever(poll_interval=0.1)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def cookie(self) -> str:
        """The name of the cookie. A browser sends cookies to every port, so it has the port."""
        return f"fairgate-{self.port}"

    def redeem_token(self, token: str) -> str | None:
        """Return the session if the token is right and was not used before."""
        with self._lock:
            if self._token is None or not _is_equal(token, self._token):
                return None
            self._token = None
            return self._session

    def is_session(self, header: str) -> bool:
        """Return whether a Cookie header has the session.

        It also has the cookies of other programs on the loopback, in any format.
        """
        wanted = f"{self.cookie}={self._session}"
        return any(_is_equal(each.strip(), wanted) for each in header.split(";"))

    def is_own(self, host: str) -> bool:
        """Return whether a Host header, or the host of an Origin, is this proxy."""
        return host in (f"{ADDRESS}:{self.port}", f"localhost:{self.port}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy, client = self, self._client

        class Handler(_Handler):
            def __init__(self, *args: Any) -> None:
                self.proxy, self.client = proxy, client
                super().__init__(*args)

        return Handler


class _Server(ThreadingHTTPServer):
    """Serves each connection in a thread."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing about a connection that the browser ended."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection of the browser."""

    timeout = IDLE_SECONDS
    proxy: PageProxy
    client: ApiClient

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: addresses have the token."""

    def _answer(self) -> None:
        if not is_same_user(self.client_address[:2], self.proxy.port):
            self._say(403, "This proxy serves the user who started it only.")
            return
        origin = self.headers.get("Origin")
        try:
            url, asker = urlsplit(self.path), None if origin is None else urlsplit(origin).netloc
            query = parse_qs(url.query)
        except ValueError:
            self._say(400, "The address or the Origin is malformed.")
            return
        if not self.proxy.is_own(self.headers.get("Host", "")):
            self._say(403, "This proxy serves the loopback address only.")
        elif asker is not None and not self.proxy.is_own(asker):
            self._say(403, "Another page may not use this proxy.")
        elif url.path == "/" and "token" in query:
            self._sign_in(query["token"][0])
        elif not self.proxy.is_session(self.headers.get("Cookie", "")):
            self._say(401, "Not signed in; run kubectl fairgate open again.")
        else:
            self._pass_on(url.path, url.query)

    def _sign_in(self, token: str) -> None:
        session = self.proxy.redeem_token(token)
        if session is None:
            self._say(401, "This address was used before; run kubectl fairgate open again.")
            return
        self.send_response(303)
        cookie = f"{self.proxy.cookie}={session}; Path=/; HttpOnly; SameSite=Strict"
        for name, value in (("Location", "/"), ("Set-Cookie", cookie), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def _pass_on(self, path: str, query: str) -> None:
        target = _target(path)
        if target is None:
            self._say(404, "There is no such page.")
            return
        length = self.headers.get("Content-Length") or "0"
        is_number = length.isdecimal() and length.isascii() and len(length) <= LONGEST_NUMBER
        size = int(length) if is_number else LARGEST_BODY + 1
        if size > LARGEST_BODY:
            self._say(413, "The request is larger than 1 MiB.")
            return
        sent = {name: self.headers[name] for name in _SENT if name in self.headers}
        body = self.rfile.read(size) if size else None
        try:
            answer = self.client.stream(
                self.command, target + (f"?{query}" if query else ""), sent, body
            )
        except ClusterUnavailable as error:
            self._say(502, str(error))
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        self.send_header("Connection", "close")  # the end of the connection ends the body
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError), contextlib.closing(answer):  # the browser may leave
            for chunk in _chunks(answer):
                self.wfile.write(chunk)

    def _say(self, status: int, sentence: str) -> None:
        body = f"{sentence}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())


def is_same_user(client: tuple[str, int], port: int) -> bool:
    """Return False if a connection to `port` is from a process of another user of this machine.

    The token is on the command line of the browser, which other users can read. Root may do
    anything, and forwards connections for others. The kernel shows a closed connection as one of
    root, so it counts as one of another user. Systems without `CONNECTIONS` report no user.
    """
    remote = f"{_kernel_text(client[0])}:{client[1]:04X}", f"{_kernel_text(ADDRESS)}:{port:04X}"
    known = False
    for file in CONNECTIONS * 2:  # a table that changes while it is read may lack a line
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()[1:]
            known = True
            for fields in map(str.split, lines):
                if fields[1].endswith(remote[0]) and fields[2].endswith(remote[1]):
                    users = ("0", str(os.getuid()), os.environ.get("SUDO_UID"))
                    return fields[3] == _ESTABLISHED and fields[7] in users
    return not known


def _kernel_text(address: str) -> str:
    """Return an IPv4 address as in `CONNECTIONS`; an IPv6 address there may end with it."""
    return f"{int.from_bytes(inet_aton(address), sys.byteorder):08X}"


def _target(path: str) -> str | None:
    """Return the path below the root of the API; None if the page has no such path."""
    if any(unquote(each) in (".", "..") for each in path.split("/")):
        return None
    if path.startswith("/v1/"):
        return path.removeprefix("/v1")
    if path.startswith("/static/"):
        return f"/page{path}"
    return "/page" if path == "/" else None


def _chunks(answer: Any) -> Iterator[bytes]:
    """Yield the body as it arrives, still compressed if it is."""
    with contextlib.suppress(urllib3.exceptions.HTTPError):  # the page asks again
        yield from answer.stream(CHUNK, decode_content=False)
