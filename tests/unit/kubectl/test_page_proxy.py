"""The proxy of `kubectl fairgate open`: its access checks, and the requests that it passes on."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.kubectl.connect import direct
from app.kubectl.page_proxy import PageProxy
from tests.support import kubectl_answers as answers
from tests.support.rest_server import Reply, Rest, serving


@pytest.fixture
def rest() -> Iterator[Rest]:
    page = Reply(200, "<!doctype html>", "text/html")
    script = Reply(200, "let a;", "text/javascript")
    small = Rest({"GET /page": page, "GET /page/static/app.js": script, "GET /me": answers.mine()})
    small.answers["PUT /tenants/team-a/weight"] = answers.stored("3")
    with serving(small):
        yield small


@contextmanager
def proxied(url: str) -> Iterator[PageProxy]:
    proxy = PageProxy(direct(url, "alices", None))
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()


@pytest.fixture
def proxy(rest: Rest) -> Iterator[PageProxy]:
    with proxied(rest.url) as found:
        yield found


Answer = tuple[int, dict[str, str], str]


def ask(
    proxy: PageProxy, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body=body, headers=sent)
    answer = connection.getresponse()
    found = {name.lower(): value for name, value in answer.getheaders()}
    text = answer.read().decode()
    connection.close()
    return answer.status, found, text


def sign_in(proxy: PageProxy) -> str:
    """Return the cookie."""
    status, headers, _ = ask(proxy, proxy.address.partition(str(proxy.port))[2])
    assert (status, headers["location"]) == (303, "/")
    cookie, _, flags = headers["set-cookie"].partition("; ")
    assert flags == "Path=/; HttpOnly; SameSite=Strict"
    return cookie


def test_the_page_and_the_api_are_read_with_the_callers_credentials(
    rest: Rest, proxy: PageProxy
) -> None:
    cookie = sign_in(proxy)
    assert ask(proxy, "/", Cookie=cookie)[2] == "<!doctype html>"
    status, headers, text = ask(proxy, "/static/app.js", Cookie=cookie)
    assert (status, headers["content-type"], text) == (200, "text/javascript", "let a;")
    status, _, text = ask(proxy, "/v1/me?x=1", Cookie=cookie, Authorization="Bearer mallorys")
    assert (status, "alice@example.com" in text) == (200, True)
    assert [each.headers["authorization"] for each in rest.asked] == ["Bearer alices"] * 3
    assert rest.asked[-1].query == {"x": "1"}
    assert "cookie" not in rest.asked[-1].headers


def test_a_write_and_its_conditions_are_passed_on(rest: Rest, proxy: PageProxy) -> None:
    own = f"http://127.0.0.1:{proxy.port}"
    words = {"Cookie": sign_in(proxy), "If_Match": '"u-1"', "Content_Type": "application/json"}
    status, *_ = ask(
        proxy, "/v1/tenants/team-a/weight", "PUT", '{"weight":"3"}', Origin=own, **words
    )
    assert status == 200
    assert (rest.asked[-1].method, rest.asked[-1].body) == ("PUT", {"weight": "3"})
    assert rest.asked[-1].headers["if-match"] == '"u-1"'


def test_the_address_is_valid_once(proxy: PageProxy) -> None:
    sign_in(proxy)
    status, headers, text = ask(proxy, proxy.address.partition(str(proxy.port))[2])
    assert (status, "set-cookie" in headers) == (401, False)
    assert text == "This address was used before; run kubectl fairgate open again.\n"


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/v1/me", "/?token=guessed"])
@pytest.mark.parametrize("cookie", ["", "fairgate=x", "fairgate-1=x"])
def test_without_the_cookie_nothing_is_passed_on(
    path: str, cookie: str, rest: Rest, proxy: PageProxy
) -> None:
    assert ask(proxy, path, Cookie=cookie)[0] == 401
    assert ask(proxy, path, Cookie=f"{proxy.cookie}=guessed")[0] == 401
    assert rest.asked == []


def test_another_host_or_origin_is_refused(rest: Rest, proxy: PageProxy) -> None:
    cookie = sign_in(proxy)
    assert ask(proxy, "/v1/me", Cookie=cookie, Host=f"evil.example:{proxy.port}")[0] == 403
    for origin in ("http://evil.example", "http://127.0.0.1:1", "null"):
        assert ask(proxy, "/v1/me", Cookie=cookie, Origin=origin)[0] == 403
    assert rest.asked == []
    assert ask(proxy, "/v1/me", Cookie=cookie, Host=f"localhost:{proxy.port}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/api/v1/secrets", "/v1/../../api/v1/secrets", "/v1/%2e%2e/x", "/static/../x", "/x"]
)
def test_other_paths_are_not_passed_on(path: str, rest: Rest, proxy: PageProxy) -> None:
    assert ask(proxy, path, Cookie=sign_in(proxy))[0] == 404
    assert rest.asked == []


def test_an_api_that_does_not_answer_is_a_sentence() -> None:
    with proxied("http://127.0.0.1:1") as proxy:
        status, _, text = ask(proxy, "/v1/me", Cookie=sign_in(proxy))
    assert (status, "does not answer" in text) == (502, True)


def test_events_arrive_while_the_stream_is_open() -> None:
    go_on = threading.Event()

    class Stream(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"6\r\nfirst\n\r\n")
            go_on.wait(10)
            self.wfile.write(b"5\r\nlast\n\r\n0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stream)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    with proxied(f"http://127.0.0.1:{server.server_port}") as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
        connection.request("GET", "/v1/stream", headers={"Cookie": sign_in(proxy)})
        answer = connection.getresponse()
        assert answer.readline() == b"first\n"
        go_on.set()
        assert answer.read() == b"last\n"
        connection.close()
    server.shutdown()
    server.server_close()
    thread.join()
