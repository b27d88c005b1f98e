"""Settings: read once, all errors reported together, no password shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.config import settings
from app.config.setting_parsers import HostPort
from app.config.settings import FIELDS
from app.core.errors import InvalidSettings

WEBHOOK = {"FAIRGATE_ROLES": "webhook"}


def test_a_webhook_needs_no_settings_but_its_role() -> None:
    chosen = settings.load(WEBHOOK)

    assert chosen.roles == ("webhook",)
    assert chosen.kubeconfig is None
    assert chosen.webhook_listen == HostPort("0.0.0.0", 8443)
    assert chosen.exempt_namespaces == settings.EXEMPT
    assert "fairgate-webhook.fairgate-system.svc" in chosen.tls_names


def test_two_processes_have_different_identities() -> None:
    assert settings.load(WEBHOOK).identity != settings.load(WEBHOOK).identity


def test_flags_win_over_variables() -> None:
    environment = WEBHOOK | {"FAIRGATE_LEASE_SECONDS": "20", "FAIRGATE_DRAIN_SECONDS": "1"}

    chosen = settings.load(environment, {"lease_seconds": "30", "drain_seconds": None})

    assert (chosen.lease_seconds, chosen.drain_seconds) == (30, 1)


def test_an_empty_variable_counts_as_absent() -> None:
    assert settings.load(WEBHOOK | {"FAIRGATE_NAMESPACE": ""}).namespace == "fairgate-system"


def test_service_variables_of_kubernetes_are_ignored() -> None:
    settings.load(WEBHOOK | {"FAIRGATE_WEBHOOK_PORT": "tcp://10.0.0.1:443"})


def test_all_invalid_settings_are_reported_with_flag_and_variable() -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings.load(
            {
                "FAIRGATE_ROLES": "webhook,controler",
                "FAIRGATE_LEASE_SECONDS": "soon",
                "FAIRGATE_WEBHOOK_LISTEN": "8443",
            }
        )

    lines = str(raised.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "--role (FAIRGATE_ROLES)",
        "--webhook-listen (FAIRGATE_WEBHOOK_LISTEN)",
        "--lease-seconds (FAIRGATE_LEASE_SECONDS)",
    ]
    assert all("use" in line for line in lines)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ROLES", ","),
        ("KUBECONFIG", "/nowhere/kubeconfig"),
        ("NAMESPACE", "Fairgate"),
        ("CLUSTER", "a{b}"),
        ("REDIS_URL", "http://redis:6379"),
        ("REDIS_URL", "redis://redis:port"),
        ("REDIS_URL", "redis://"),
        ("REDIS_URL", "redis://[::1"),
        ("MANAGED_RESOURCES", "*"),
        ("MANAGED_RESOURCES", "nvidia.com/*gpu"),
        ("EXEMPT_NAMESPACES", "kube-system,Kube Public"),
        ("OPS_LISTEN", "0.0.0.0:70000"),
        ("OPS_LISTEN", "::1:8080"),
        ("TLS_NAMES", "fairgate webhook"),
        ("CANARY_SECONDS", "often"),
        ("TLS_CLIENT_CA_FILE", "/nowhere/ca.crt"),
        ("TLS_DAYS", "0"),
        ("TLS_SETTLE_SECONDS", "3601"),
        ("LEASE_SECONDS", "2"),
        ("LEASE_SECONDS", "9" * 5000),
        ("RELEASE_CONCURRENCY", "0"),
        ("EVICT_BYPASSED", "maybe"),
        ("LOG_LEVEL", "loud"),
        ("IDENTITY", "two words"),
    ],
)
def test_invalid_setting_is_refused(variable: str, value: str) -> None:
    name = f"FAIRGATE_{variable}"
    with pytest.raises(InvalidSettings, match=re.escape(name)):
        settings.load(WEBHOOK | {name: value})


@pytest.mark.parametrize(("written", "chosen"), [("", False), ("true", True), ("False", False)])
def test_a_switch_is_true_or_false_and_shown_as_written(written: str, chosen: bool) -> None:
    read = settings.load(WEBHOOK | {"FAIRGATE_EVICT_BYPASSED": written})
    assert read.evict_bypassed is chosen
    shown = {flag: value for flag, _, value in settings.describe(read)}
    assert shown["--evict-bypassed"] == str(chosen).lower()


@pytest.mark.parametrize(
    ("written", "address"),
    [
        (":8443", HostPort("", 8443)),
        ("localhost:0", HostPort("localhost", 0)),
        ("[::1]:8080", HostPort("::1", 8080)),
    ],
)
def test_addresses_may_be_written_in_these_ways(written: str, address: HostPort) -> None:
    chosen = settings.load(WEBHOOK | {"FAIRGATE_WEBHOOK_LISTEN": written})

    assert chosen.webhook_listen == address
    assert str(address) == written


def test_device_classes_are_written_with_the_resource_they_count_as() -> None:
    written = "gpu.nvidia.com=nvidia.com/gpu, h100 = nvidia.com/gpu"
    chosen = settings.load(WEBHOOK | {"FAIRGATE_DEVICE_CLASSES": written})

    assert [(each.name, each.resource) for each in chosen.device_classes] == [
        ("gpu.nvidia.com", "nvidia.com/gpu"),
        ("h100", "nvidia.com/gpu"),
    ]


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("gpu.nvidia.com", "use CLASS=RESOURCE"),
        ("gpu.nvidia.com=", "use CLASS=RESOURCE"),
        ("gpu.nvidia.com=nvidia.com/mig-*", "use CLASS=RESOURCE"),
        ("GPU=nvidia.com/gpu", "no name of an object"),
        ("a=nvidia.com/gpu,a=amd.com/gpu", "named twice"),
    ],
)
def test_invalid_device_class_is_refused(written: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words) as raised:
        settings.load(WEBHOOK | {"FAIRGATE_DEVICE_CLASSES": written})

    assert "--device-classes" in str(raised.value)


@pytest.mark.parametrize("role", ["controller", "api"])
def test_only_the_controller_and_the_api_need_redis(role: str) -> None:
    with pytest.raises(InvalidSettings, match="FAIRGATE_REDIS_URL"):
        settings.load({"FAIRGATE_ROLES": role})


def test_a_certificate_is_named_whole_or_not_at_all(tmp_path: Path) -> None:
    certificate = tmp_path / "tls.crt"
    certificate.touch()

    with pytest.raises(InvalidSettings) as raised:
        settings.load(WEBHOOK | {"FAIRGATE_TLS_CERT_FILE": str(certificate)})

    assert "--tls-key-file" in str(raised.value)
    assert "--tls-ca-file" in str(raised.value)


def test_two_listeners_cannot_share_one_address() -> None:
    with pytest.raises(InvalidSettings, match="--ops-listen"):
        settings.load(WEBHOOK | {"FAIRGATE_OPS_LISTEN": "0.0.0.0:8443"})


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@redis:6379/0",
        f"rediss://user:s3cret@redis:6379/0?ssl_ca_certs={__file__}",
        "redis+sentinel://:s3cret@a:26379,b:26379/master/0",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    chosen = settings.load({"FAIRGATE_REDIS_URL": url})

    assert chosen.redis_url == url
    assert "s3cret" not in repr(settings.describe(chosen))
    assert "s3cret" not in repr(chosen)


@pytest.mark.parametrize(
    "url",
    [
        "postgres://:s3cret@redis:6379/0",
        "rediss://:s3cret@redis:6379/0?password=s3cret",
        "rediss://:s3cret@redis:6379/0?s3cret",
    ],
)
def test_a_password_in_a_broken_url_is_never_shown(url: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        settings.load({"FAIRGATE_REDIS_URL": url})

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("rediss://redis:6379/0?ssl_cert_reqs=none", "only files"),
        ("rediss://redis:6379/0?ssl_check_hostname=no", "only files"),
        ("redis://redis:6379/0?socket_timeout=600", "only files"),
        (f"redis+sentinel://redis:26379/m/0?ssl_ca_certs={__file__}", "only a rediss://"),
        ("rediss://redis:6379/0?ssl_ca_certs=/no/such/file", "there is no file"),
    ],
)
def test_redis_url_options_may_only_name_existing_tls_files(url: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        settings.load({"FAIRGATE_REDIS_URL": url})


@pytest.mark.parametrize(("written", "meant"), [("true", True), ("False", False), ("", True)])
def test_a_switch_is_true_or_false(written: str, meant: bool) -> None:
    chosen = settings.load(WEBHOOK | {"FAIRGATE_PREEMPTION_TWINS": written})

    assert chosen.preemption_twins is meant
    told = dict(row[1:3] for row in settings.describe(chosen))
    assert told["FAIRGATE_PREEMPTION_TWINS"] == str(meant).lower()


def test_boolean_setting_accepts_only_true_or_false() -> None:
    with pytest.raises(InvalidSettings, match="'yes' is not valid; use true or false"):
        settings.load(WEBHOOK | {"FAIRGATE_PREEMPTION_TWINS": "yes"})


def test_the_table_and_the_dataclass_name_the_same_settings() -> None:
    chosen = settings.load(WEBHOOK)

    assert [row[1] for row in settings.describe(chosen)] == [
        f"FAIRGATE_{name.upper()}" for name in chosen.__slots__
    ]
    assert len({field.option for field in FIELDS}) == len(FIELDS)
