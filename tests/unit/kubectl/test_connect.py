"""Connections to Fairgate with all kinds of kubeconfig credentials, and the error messages."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.kubectl.client import AGGREGATED, ApiClient
from app.kubectl.options import ConnectionOptions
from app.tls.certificate_authority import CertificateAuthority, Credential, new_authority
from tests.support import kubectl_answers as answers
from tests.support.rest_server import Asked, Reply, Rest, serving

NAME = "fairgate.test"


@pytest.fixture(autouse=True)
def _a_plain_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return new_authority("ca", datetime.now(UTC), 1)


@pytest.fixture
def plain() -> Iterator[Rest]:
    """The API without TLS."""
    with serving(Rest({"GET /pools": answers.pools()})) as rest:
        yield rest


def tls(ca: CertificateAuthority, folder: Path, *names: str) -> ssl.SSLContext:
    """Return a TLS context that requests client certificates."""
    own = ca.issue("server", names=names, server=True, client=False, now=datetime.now(UTC), days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "server.crt").write_bytes(own.certificate_pem)
    (folder / "server.key").write_bytes(own.key_pem)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(cadata=ca.certificate_pem.decode())
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


@pytest.fixture
def secure(ca: CertificateAuthority, tmp_path: Path) -> Iterator[Rest]:
    """The API with TLS, on its real address."""
    context = tls(ca, tmp_path, "127.0.0.1")
    with serving(Rest({"GET /pools": answers.pools()}), context) as rest:
        yield rest


def person(ca: CertificateAuthority, name: str) -> Credential:
    return ca.issue(name, server=False, client=True, now=datetime.now(UTC), days=1)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(document | more))
    return path


def opened(file: Path | str = "", **more: Any) -> ApiClient:
    return ConnectionOptions(KubeconfigOptions(str(file), **more)).create_client()


def asked(rest: Rest, file: Path, **more: Any) -> Asked:
    """Request the pools with a kubeconfig; return the request that arrived."""
    opened(file, **more).get("/pools")
    assert rest.asked[-1].path == f"{AGGREGATED}/pools"
    return rest.asked[-1]


def test_a_client_certificate_is_shown(
    secure: Rest, ca: CertificateAuthority, tmp_path: Path
) -> None:
    alice = person(ca, "alice")
    user = {
        "client-certificate-data": encoded(alice.certificate_pem),
        "client-key-data": encoded(alice.key_pem),
    }
    cluster = {"server": secure.url, "certificate-authority-data": encoded(ca.certificate_pem)}
    file = kubeconfig(tmp_path / "config", cluster, user)
    assert asked(secure, file).person == "alice"
    assert opened(file).namespace == "team-a"


def test_files_are_found_next_to_the_kubeconfig(
    secure: Rest, ca: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bob = person(ca, "bob")
    (tmp_path / "bob.crt").write_bytes(bob.certificate_pem)
    (tmp_path / "bob.key").write_bytes(bob.key_pem)
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    user = {"client-certificate": "bob.crt", "client-key": "bob.key"}
    cluster = {"server": secure.url, "certificate-authority": "ca.crt"}
    file = kubeconfig(tmp_path / "config", cluster, user)
    monkeypatch.chdir("/")
    assert asked(secure, file).person == "bob"


def test_the_name_in_the_certificate_may_be_another(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    with serving(Rest({"GET /pools": answers.pools()}), tls(ca, tmp_path, NAME)) as rest:
        cluster = {"server": rest.url, "certificate-authority-data": encoded(ca.certificate_pem)}
        file = kubeconfig(tmp_path / "a", cluster, {"token": "t"})
        with pytest.raises(ClusterUnavailable, match="No trust in the TLS"):
            opened(file).get("/pools")
        file = kubeconfig(tmp_path / "b", cluster | {"tls-server-name": NAME}, {"token": "t"})
        assert asked(rest, file).headers["authorization"] == "Bearer t"


def test_a_token_may_be_written_or_in_a_file(plain: Rest, tmp_path: Path) -> None:
    cluster = {"server": plain.url}
    file = kubeconfig(tmp_path / "a", cluster, {"token": "written"})
    assert asked(plain, file).headers["authorization"] == "Bearer written"
    (tmp_path / "token").write_text("from-file")
    file = kubeconfig(tmp_path / "b", cluster, {"tokenFile": "token"})
    assert asked(plain, file).headers["authorization"].strip() == "Bearer from-file"


def test_a_password_is_basic_authentication(plain: Rest, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "a", {"server": plain.url}, {"username": "a", "password": "b"})
    assert asked(plain, file).headers["authorization"] == f"Basic {encoded(b'a:b')}"


def program(folder: Path, text: str) -> dict[str, Any]:
    """Return a kubeconfig user with an exec credential plugin."""
    script = folder / "login"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"command": str(script), "apiVersion": version, "interactiveMode": "Never"}}


def test_a_login_program_gives_the_token(plain: Rest, tmp_path: Path) -> None:
    said = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "fresh"},
    }
    user = program(tmp_path, f"echo '{json.dumps(said)}'")
    file = kubeconfig(tmp_path / "a", {"server": plain.url}, user)
    assert asked(plain, file).headers["authorization"] == "Bearer fresh"


def test_failed_login_program_is_reported_without_a_request(plain: Rest, tmp_path: Path) -> None:
    user = program(tmp_path, "echo 'session expired' >&2; exit 1")
    file = kubeconfig(tmp_path / "a", {"server": plain.url}, user)
    with pytest.raises(InvalidInput, match=r"login.*session expired.*log in again"):
        opened(file)
    assert plain.asked == []


def test_kubeconfig_and_options_can_impersonate_a_user(plain: Rest, tmp_path: Path) -> None:
    user = {"token": "t", "as": "bob", "as-groups": ["g", "h"], "as-user-extra": {"a/b": ["1"]}}
    headers = asked(plain, kubeconfig(tmp_path / "a", {"server": plain.url}, user)).headers
    assert headers["impersonate-user"] == "bob"
    assert headers["impersonate-group"] == "g,h"
    assert headers["impersonate-extra-a%2fb"] == "1"
    file = tmp_path / "a"
    headers = asked(plain, file, as_user="eve", as_groups=("i",)).headers
    assert (headers["impersonate-user"], headers["impersonate-group"]) == ("eve", "i")


def test_a_group_without_a_user_is_not_blamed_on_the_kubeconfig(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "a", {"server": "http://127.0.0.1:1"}, {"token": "t"})
    with pytest.raises(InvalidInput, match=r"^--as-group needs a user to act as"):
        opened(file, as_groups=("g",))


def test_impersonation_without_the_api_server_is_refused() -> None:
    eve = KubeconfigOptions(as_user="eve")
    with pytest.raises(InvalidInput, match="--as needs the API server"):
        ConnectionOptions(eve, "https://127.0.0.1:1", "t").create_client()


def test_a_proxy_is_used(plain: Rest, tmp_path: Path) -> None:
    cluster = {"server": "http://cluster.invalid", "proxy-url": plain.url}
    assert asked(plain, kubeconfig(tmp_path / "a", cluster, {"token": "t"})).headers["host"] == (
        "cluster.invalid"
    )


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1080", "ftp://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_named(tmp_path: Path, proxy: str) -> None:
    cluster = {"server": "http://cluster.invalid", "proxy-url": proxy}
    file = kubeconfig(tmp_path / "a", cluster, {"token": "t"})
    with pytest.raises(InvalidInput, match=f"The proxy {proxy} of the kubeconfig"):
        opened(file)


def test_a_proxy_of_the_environment_needs_no_scheme(
    plain: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", plain.url.removeprefix("http://"))
    monkeypatch.setenv("no_proxy", "")
    options = ConnectionOptions(KubeconfigOptions(""), "http://localhost:1", "t")
    options.create_client().get("/pools")
    assert plain.asked[-1].headers["host"] == "localhost:1"
    monkeypatch.setenv("http_proxy", "socks5://me:secret@127.0.0.1:1080")
    with pytest.raises(InvalidInput, match="The proxy socks5://127") as refusal:
        options.create_client()
    assert "secret" not in str(refusal.value)


def test_several_kubeconfig_files_are_merged_and_a_context_is_selectable(
    plain: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kubeconfig(tmp_path / "one", {"server": "http://127.0.0.1:1"}, {"token": "one"})
    other = tmp_path / "two"
    document = {
        "contexts": [{"name": "y", "context": {"cluster": "d", "user": "v"}}],
        "clusters": [{"name": "d", "cluster": {"server": plain.url}}],
        "users": [{"name": "v", "user": {"token": "two"}}],
    }
    other.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", f"{one}:{other}:{tmp_path / 'gone'}")
    client = opened(context="y")
    client.get("/pools")
    assert plain.asked[-1].headers["authorization"] == "Bearer two"
    assert client.namespace == "default"


def test_the_first_current_context_of_several_files_counts(
    plain: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").write_text(json.dumps({"current-context": "x"}))
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    contexts = [{"name": "x", "context": context}, {"name": "y", "context": {"cluster": "none"}}]
    more = {"current-context": "y", "contexts": contexts}
    two = kubeconfig(tmp_path / "two", {"server": plain.url}, {"token": "two"}, **more)
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'one'}:{two}")
    client = opened()
    client.get("/pools")
    assert plain.asked[-1].headers["authorization"] == "Bearer two"
    assert client.namespace == "team-a"


@pytest.mark.parametrize(
    "text", ["", "[]", "a: b", "{", '{"current-context": "x", "contexts": [{"name": "x"}]}']
)
def test_invalid_kubeconfig_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(InvalidInput, match="kubeconfig"):
        opened(tmp_path / "config")


def test_missing_kubeconfig_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"There is no kubeconfig .*\.kube/config"):
        opened()


def test_unknown_context_is_named_in_the_error(plain: Rest, tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "a", {"server": plain.url}, {"token": "t"})
    with pytest.raises(InvalidInput, match="prod"):
        opened(file, context="prod")


def status(code: int, message: str) -> Reply:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return Reply(code, json.dumps(body), "application/json")


@pytest.mark.parametrize(
    ("reply", "kind", "sentence"),
    [
        (status(401, "Unauthorized"), ClusterRefused, "does not accept your credentials"),
        (status(403, "alice cannot get path"), ClusterRefused, "alice cannot get path"),
        (Reply(404, "404 page not found", "text/plain"), ClusterRefused, "has no Fairgate API"),
        (Reply(503, "service unavailable", "text/plain"), ClusterUnavailable, "kubectl get apis"),
        (status(500, "etcd"), ClusterUnavailable, "etcd"),
    ],
)
def test_errors_of_the_api_server_name_their_cause(
    reply: Reply, kind: type[Exception], sentence: str, plain: Rest, tmp_path: Path
) -> None:
    plain.answers["GET /pools"] = reply
    file = kubeconfig(tmp_path / "a", {"server": plain.url}, {"token": "t"})
    with pytest.raises(kind, match=sentence):
        opened(file).get("/pools")


def test_a_url_is_trusted_by_the_named_ca_alone(
    secure: Rest, ca: CertificateAuthority, tmp_path: Path
) -> None:
    (tmp_path / "ca.crt").write_bytes(ca.certificate_pem)
    ConnectionOptions(
        KubeconfigOptions(), secure.url, token="t", authority=tmp_path / "ca.crt"
    ).create_client().get("/pools")
    assert secure.asked[-1].path == "/v1/pools"
    with pytest.raises(ClusterUnavailable, match="--certificate-authority"):
        ConnectionOptions(KubeconfigOptions(), secure.url, token="t").create_client().get("/pools")
