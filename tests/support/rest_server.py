"""A small HTTP server that imitates Fairgate's REST API with the real response models.

It serves both API roots, paginates lists, and records the requests.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import BaseModel

from app.web.api import problems

ROOTS = ("/apis/api.fairgate.io/v1", "/v1")
DATE = "Sun, 01 Mar 2026 12:00:00 GMT"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    person: str = ""
    """The user in the client certificate."""


@dataclass
class Rest:
    """Answers by method and route: a model, a problem as its status, or a `Reply`."""

    answers: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    """Answers of the API server itself."""
    asked: list[Asked] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    page: int = 500
    url: str = ""

    def refuse(self, route: str, status: int, detail: str) -> None:
        """Answer a route with a problem."""
        problem = problems.problem(status, detail)
        self.answers[route] = Reply(status, problem.model_dump_json(), "application/problem+json")

    def answer(self, asked: Asked) -> Reply:
        """Return the answer to a request."""
        route = next(
            (asked.path.removeprefix(r) for r in ROOTS if asked.path.startswith(r)), asked.path
        )
        if f"{asked.method} {asked.path}" in self.raw:
            body = json.dumps(self.raw[f"{asked.method} {asked.path}"])
            return Reply(200, body, "application/json")
        found = self.answers.get(f"{asked.method} {route}")
        if isinstance(found, list):  # the answers in turn; the last one repeats
            found = found.pop(0) if len(found) > 1 else found[0]
        if found is None:
            return Reply(404, "404 page not found", "text/plain")
        if isinstance(found, Reply):
            return found
        return Reply(200, json.dumps(self._paged(found, asked.query)), "application/json")

    def _paged(self, model: BaseModel, query: dict[str, str]) -> Any:
        shown = model.model_dump(mode="json", by_alias=True)
        if "items" not in shown:
            return shown
        begin = int(query.get("continue", "0"))
        end = begin + min(int(query.get("limit", self.page)), self.page)
        more = str(end) if end < len(shown["items"]) else None
        return shown | {"items": shown["items"][begin:end], "continue": more}


@dataclass(frozen=True)
class Reply:
    """An answer as sent."""

    status: int
    body: str
    kind: str


@contextmanager
def serving(rest: Rest, tls: ssl.SSLContext | None = None) -> Iterator[Rest]:
    """Serve on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            url = urlsplit(self.path)
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            asked = Asked(
                self.command,
                unquote(url.path),
                dict(parse_qsl(url.query)),
                {key.lower(): ",".join(self.headers.get_all(key, ())) for key in self.headers},
                body,
                _person(self.connection),
            )
            rest.asked.append(asked)
            reply = rest.answer(asked)
            self.send_response_only(reply.status)
            self.send_header("Date", DATE)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body.encode())))
            for name, value in rest.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body.encode())

        do_GET = do_PUT = do_POST = _do

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    rest.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    try:
        yield rest
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _person(connection: Any) -> str:
    if not isinstance(connection, ssl.SSLSocket):
        return ""
    peer: Any = connection.getpeercert() or {}
    return ",".join(
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    )
