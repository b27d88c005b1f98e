"""The proxy of `kubectl fairgate open`: its access checks, and the requests that it passes on."""

from __future__ import annotations

import http.client
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from app.kubectl import page_proxy
from app.kubectl.connect import direct_client
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
    proxy = PageProxy(direct_client(url, "alices", None))
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


@pytest.mark.parametrize(
    "other", ['prefs={"a":1,"b":"c"}', "a[0]=1", "name=dark mode", "flag", "Path=/x", "", "ä=1"]
)
def test_cookies_of_other_programs_do_not_matter(proxy: PageProxy, other: str) -> None:
    own = sign_in(proxy)
    for header in (f"{other}; {own}", f"{own}; {other}"):
        assert proxy.is_session(header)
    assert not proxy.is_session(other)
    assert not proxy.is_session(f"{other}; {own}x")


def test_a_length_of_thousands_of_digits_is_refused(proxy: PageProxy) -> None:
    cookie = sign_in(proxy)
    status, _, text = ask(
        proxy, "/v1/simulations", "POST", Cookie=cookie, Content_Length="0" * 5000
    )
    assert (status, text) == (413, "The request is larger than 1 MiB.\n")


def test_a_connection_that_the_browser_ends_writes_nothing(
    proxy: PageProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"GET / HT")
    sign_in(proxy)  # the next connection is accepted after the first one
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join()
    assert capfd.readouterr().err == ""


V4 = "   0: 0200007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  4711 0 1 1\n"
V6 = V4.replace("0200007F", "0000000000000000FFFF00000200007F").replace(
    "0100007F", "0000000000000000FFFF00000100007F"
)


@pytest.mark.skipif(sys.byteorder != "little", reason="the lines are from such a machine")
@pytest.mark.parametrize("line", [V4, V6])
def test_user_of_a_connection_is_read_from_the_kernel(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tcp"
    monkeypatch.setattr(page_proxy, "CONNECTIONS", (tmp_path / "absent", file))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    file.write_text(f"header\n{line}")
    assert page_proxy.is_same_user(("127.0.0.2", 40000), 8080)
    # A connection of root from another address comes first.
    file.write_text(f"header\n{line.replace('02', '03').replace('4711', '0')}{line}")
    monkeypatch.setattr(os, "getuid", lambda: 1)
    assert not page_proxy.is_same_user(("127.0.0.2", 40000), 8080)
    monkeypatch.setenv("SUDO_UID", "4711")
    assert page_proxy.is_same_user(("127.0.0.2", 40000), 8080)
    closed = line.replace(" 01 ", " 06 ").replace("4711", "   0")  # the kernel forgot its user
    for other in (closed, ""):
        file.write_text(f"header\n{other}")
        assert not page_proxy.is_same_user(("127.0.0.2", 40000), 8080)


@pytest.mark.skipif(os.getuid() != 0, reason="starts programs as other users")
@pytest.mark.parametrize(("user", "words"), [(65534, "the user who started it"), (0, "loopback")])
def test_another_user_of_the_machine_is_refused(proxy: PageProxy, user: int, words: str) -> None:
    program = (
        f"import os, socket; 'x'.encode('idna'); os.setuid({user})\n"
        f"s = socket.create_connection(('127.0.0.1', {proxy.port}))\n"
        "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n"
        "while part := s.recv(999): print(part.decode())"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert words in asked.stdout


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/v1/me", "/?token=guessed"])
@pytest.mark.parametrize("cookie", ["", "fairgate=x", "fairgate-1=x"])
def test_request_without_the_cookie_is_401_and_not_forwarded(
    path: str, cookie: str, rest: Rest, proxy: PageProxy
) -> None:
    assert ask(proxy, path, Cookie=cookie)[0] == 401
    assert ask(proxy, path, Cookie=f"{proxy.cookie}=guessed")[0] == 401
    assert rest.asked == []


@pytest.mark.parametrize("secret", ["\xe9", "%C3%A9", "%ED%A0%80"])
def test_a_secret_that_is_no_ascii_is_refused(secret: str, proxy: PageProxy) -> None:
    assert ask(proxy, f"/?token={quote(secret, safe='%')}")[0] == 401
    assert ask(proxy, "/", Cookie=f'{proxy.cookie}="{secret}"')[0] == 401


def test_a_malformed_address_or_origin_is_400(proxy: PageProxy) -> None:
    assert ask(proxy, "http://[", Host=f"127.0.0.1:{proxy.port}")[0] == 400
    assert ask(proxy, "/", Origin="http://[")[0] == 400


def test_another_user_cannot_reach_the_parser_of_addresses(
    proxy: PageProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_proxy, "is_same_user", lambda *_: False)
    assert ask(proxy, "http://[", Host=f"127.0.0.1:{proxy.port}")[0] == 403


@pytest.mark.parametrize("length", ["-1", "x", "9" * 20, "\xb2"])
def test_a_length_that_is_no_number_is_refused(length: str, proxy: PageProxy) -> None:
    assert ask(proxy, "/v1/me", Cookie=sign_in(proxy), Content_Length=length)[0] == 413


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
