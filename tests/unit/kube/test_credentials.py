"""The identity of a process in a pod: address, trust and token of its service account."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from app.core.errors import InvalidSettings
from app.kube import credentials
from app.tls.certificate_authority import new_authority

POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("abc\n")
    (tmp_path / "ca.crt").write_bytes(new_authority("ca", datetime.now(UTC), 1).certificate_pem)
    return tmp_path


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1", "kubernetes.example"])
def test_address_in_a_pod_equals_that_of_the_client_library(account: Path, host: str) -> None:
    environment = POD | {"KUBERNETES_SERVICE_HOST": host}
    expected = Configuration()
    token, ca = str(account / "token"), str(account / "ca.crt")
    InClusterConfigLoader(token, ca, environ=environment).load_and_set(expected)
    found = credentials.api_server_in_pod(environment, account)
    assert found.url == expected.host
    assert found.token.value() == expected.api_key["BearerToken"].strip().replace("b", "B", 1)


def test_a_pod_trusts_the_ca_of_its_service_account_only(account: Path) -> None:
    authorities = credentials.api_server_in_pod(POD, account).tls.get_ca_certs()
    assert [each["subject"] for each in authorities] == [((("commonName", "ca"),),)]


def test_a_pod_reaches_the_api_server_without_a_proxy(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert credentials.api_server_in_pod(POD, account).proxy is None


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("token", "", "token is empty"),
        ("token", None, "No such file"),
        ("ca.crt", "", "NO_CERTIFICATE"),
        ("ca.crt", None, "No such file"),
    ],
)
def test_an_incomplete_service_account_is_reported(
    account: Path, name: str, text: str | None, reason: str
) -> None:
    if text is None:
        (account / name).unlink()
    else:
        (account / name).write_text(text)
    with pytest.raises(InvalidSettings, match=f"{reason}.*set FAIRGATE_KUBECONFIG"):
        credentials.api_server_in_pod(POD, account)


@pytest.mark.parametrize("missing", POD)
def test_missing_environment_of_a_pod_is_reported(account: Path, missing: str) -> None:
    environment = {name: value for name, value in POD.items() if name != missing}
    with pytest.raises(InvalidSettings, match="run in a pod"):
        credentials.api_server_in_pod(environment, account)


def test_a_pod_does_not_load_the_client_library(account: Path) -> None:
    script = (
        "import asyncio, os, pathlib, sys\n"
        "import app.wiring.serve\n"
        "from app.kube import credentials\n"
        "from app.kube.client import Client\n"
        f"credentials.api_server_in_pod.__defaults__ = (pathlib.Path({str(account)!r}),)\n"
        "asyncio.run(Client.connect())\n"
        "print(*sorted({'kubernetes', 'aiohttp'} & sys.modules.keys()))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True, text=True, env=POD, check=True,
    )  # fmt: skip
    assert ran.stdout.split() == ["aiohttp"], ran.stderr
