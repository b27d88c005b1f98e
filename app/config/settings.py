"""The settings of one process: frozen, read once, with all mistakes reported at once.

The table `FIELDS` is the only definition. Parsing, flags, `--check-settings` and the documentation
read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.config import setting_parsers as text
from app.config.setting_parsers import DeviceClassSetting as DeviceClassSetting
from app.config.setting_parsers import HostPort as HostPort
from app.core.admission.pod_templates import TemplateKind
from app.core.admission.validation import ValidationRules
from app.core.admission.workload_kinds import BUILT_IN
from app.core.errors import InvalidInput, InvalidSettings
from app.core.policy import Mode

ROLES = ("webhook", "controller", "api")
MANAGED = (
    "nvidia.com/gpu",
    "amd.com/gpu",
    "nvidia.com/mig-*",
    "nvidia.com/gpu.shared",
    "nvidia.com/gpucores",
    "nvidia.com/gpumem",
)
CLASSES = (
    DeviceClassSetting("gpu.nvidia.com", "nvidia.com/gpu"),
    DeviceClassSetting("mig.nvidia.com", "nvidia.com/gpu"),
    DeviceClassSetting("gpu.amd.com", "amd.com/gpu"),
)
EXEMPT = ("kube-system", "kube-public", "kube-node-lease", "fairgate-system", "gpu-operator")
STALE_KINDS = ("ownerless", "idle")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one process. `redis_url` may contain a password: never print it."""

    roles: tuple[str, ...]
    kubeconfig: Path | None
    namespace: str
    cluster: str
    redis_url: str | None = field(repr=False)
    managed_resources: tuple[str, ...]
    device_classes: tuple[DeviceClassSetting, ...]
    exempt_namespaces: tuple[str, ...]
    rules: ValidationRules
    templates: tuple[TemplateKind, ...]
    webhook_listen: HostPort
    api_listen: HostPort
    aggregated_listen: HostPort | None
    api_requests_per_second: int
    token_audiences: tuple[str, ...] | None
    ops_listen: HostPort
    metrics_public: bool
    tls_names: tuple[str, ...]
    tls_cert_file: Path | None
    tls_key_file: Path | None
    tls_ca_file: Path | None
    tls_client_ca_file: Path | None
    tls_days: int
    tls_settle_seconds: int
    canary_seconds: int
    preemption_twins: bool
    lease_seconds: int
    drain_seconds: int
    release_concurrency: int
    mode: Mode
    evict_bypassed: bool
    evictions_per_minute: int
    prometheus_url: str | None = field(repr=False)
    idle_minutes: int
    reclaim_zombies: tuple[str, ...] | None
    audit_folder: Path | None
    audit_days: int
    audit_megabytes: int
    usage_days: int
    usage_runs: int
    log_level: str
    identity: str


@dataclass(frozen=True, slots=True)
class Field:
    """One setting: name, parser, default and help text. `parse` raises InvalidInput."""

    name: str
    parse: Callable[[str], object]
    default: str
    help: str
    flag: str = ""

    @property
    def option(self) -> str:
        """Return the flag as typed on the command line."""
        return self.flag or "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Return the environment variable."""
        return "FAIRGATE_" + self.name.upper()


FIELDS: tuple[Field, ...] = (
    Field(
        "roles",
        text.choices(ROLES),
        ",".join(ROLES),
        "Roles of this process: webhook, controller, api. Repeat it, or separate by commas.",
        flag="--role",
    ),
    Field(
        "kubeconfig",
        text.file,
        "",
        "How to reach the API server. Absent: as a pod of the cluster.",
    ),
    Field("namespace", text.label, "fairgate-system", "The namespace Fairgate lives in."),
    Field("cluster", text.cluster, "default", "Name of this cluster in the keys of Redis."),
    Field(
        "redis_url",
        text.redis_url,
        "",
        "Redis for the roles controller and api, and for reports of the webhook: "
        "redis://HOST:6379/0, redis+sentinel://HOST:26379,HOST:26379/MASTER/0; with TLS "
        "rediss://, rediss+sentinel:// and, if need be, "
        "?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE.",
    ),
    Field(
        "managed_resources",
        text.resources,
        ",".join(MANAGED),
        "Resources that are queued for; a trailing * stands for any ending.",
    ),
    Field(
        "device_classes",
        text.device_classes,
        ",".join(map(str, CLASSES)),
        "Device classes, each with the managed resource that its devices count as.",
    ),
    Field("exempt_namespaces", text.labels, ",".join(EXEMPT), "Namespaces that Fairgate ignores."),
    Field(
        "rules",
        text.rules,
        "{}",
        "Rules of the webhook that differ between clusters, as JSON: controllers, "
        "schedulers, scheduler_users, phase_writers, variables, paths, refuse_privileged, taints, "
        "refuse_preemption, refuse_other_namespaces.",
    ),
    Field(
        "templates",
        text.templates,
        text.show(BUILT_IN),
        "Kinds that carry pod templates, as GROUP/RESOURCE=PATH; [*] in a path is every item of a "
        "list, {*} every value of a map.",
    ),
    Field(
        "webhook_listen", text.address, "0.0.0.0:8443", "Listen address of the webhook, with TLS."
    ),
    Field("api_listen", text.address, "0.0.0.0:8444", "Listen address of the REST API, with TLS."),
    Field(
        "aggregated_listen",
        text.address,
        "",
        "Listen address of the REST API for the API server, which sends requests of its users "
        "(for example 0.0.0.0:8445). Absent: nowhere.",
    ),
    Field(
        "api_requests_per_second",
        text.whole(0, 1_000_000),
        "200",
        "Most requests a second that the REST API takes from one caller; 0: no limit.",
    ),
    Field(
        "token_audiences",
        text.audiences,
        "",
        "Audiences of OIDC providers whose tokens the REST API also accepts, separated by commas. "
        "The API server must trust the provider.",
    ),
    Field(
        "ops_listen", text.address, "0.0.0.0:8080", "Plain HTTP for /livez, /readyz and /metrics."
    ),
    Field(
        "metrics_public",
        text.switch,
        "false",
        "Whether /metrics answers without a token: true or false. Metrics name tenants.",
    ),
    Field(
        "tls_names",
        text.names,
        "",
        "Names and addresses the serving certificate carries. Absent: those of the Services.",
    ),
    Field("tls_cert_file", text.file, "", "Your own serving certificate, PEM, chain included."),
    Field("tls_key_file", text.file, "", "Its private key, PEM."),
    Field("tls_ca_file", text.file, "", "The CA that signed it, PEM."),
    Field(
        "tls_client_ca_file",
        text.file,
        "",
        "CA of the API server's client certificate, PEM: the webhook then accepts no other "
        "client. Absent: it requests no certificate.",
    ),
    Field(
        "tls_days",
        text.whole(1, 3650),
        "365",
        "Lifetime of the certificate that Fairgate makes. It is renewed after two thirds.",
    ),
    Field(
        "tls_settle_seconds",
        text.whole(1, 3600),
        "600",
        "Overlap at a change of the CA: time before the new one signs. The old one stays trusted "
        "for twice this time.",
    ),
    Field(
        "canary_seconds",
        text.whole(0, 3600),
        "10",
        "How often the webhook tries whether pods are held and gates hold; 0: never.",
    ),
    Field(
        "preemption_twins",
        text.switch,
        "true",
        "Give managed pods a PriorityClass that does not preempt: true or false.",
    ),
    Field(
        "lease_seconds",
        text.whole(3, 600),
        "15",
        "How long a leader that fell silent keeps the lead.",
    ),
    Field(
        "drain_seconds",
        text.whole(0, 600),
        "20",
        "How long the process serves after the signal to stop.",
    ),
    Field("release_concurrency", text.whole(1, 1000), "16", "Most release patches at once."),
    Field(
        "mode",
        lambda written: Mode(text.choice(("enforce", "observe"))(written).capitalize()),
        "enforce",
        "Mode if the Policy does not set it. Observe: pods are counted, but not held or evicted.",
    ),
    Field(
        "evict_bypassed",
        text.switch,
        "false",
        "Whether pods that bypassed the gate are evicted (true or false), not only reported.",
    ),
    Field(
        "evictions_per_minute",
        text.whole(1, 100_000),
        "60",
        "Most pods evicted in a minute to make room for others, on average; a gang goes at once.",
    ),
    Field(
        "prometheus_url",
        text.http_url,
        "",
        "A Prometheus that scrapes NVIDIA's DCGM exporter: pods that leave their devices idle are "
        "reported. Absent: idle devices are not reported.",
    ),
    Field(
        "idle_minutes",
        text.whole(5, 10_000),
        "60",
        "How long the devices of a pod must have been idle for it to be reported.",
    ),
    Field(
        "reclaim_zombies",
        text.choices(STALE_KINDS),
        "",
        "Stale pods to evict: ownerless (held, and their controller is gone), idle. If absent, "
        "they are only reported.",
    ),
    Field(
        "audit_folder",
        text.folder,
        "",
        "A folder to which the audit chain is copied, as files that are only appended to. "
        "Absent: standard output alone.",
    ),
    Field("audit_days", text.whole(1, 36500), "90", "How long Redis keeps audit entries."),
    Field(
        "audit_megabytes",
        text.whole(1, 1_000_000),
        "256",
        "How much memory of Redis audit entries may take; the oldest go first.",
    ),
    Field("usage_days", text.whole(1, 3660), "31", "Days for which Redis keeps usage records."),
    Field(
        "usage_runs",
        text.whole(1000, 100_000_000),
        "250000",
        "Maximum number of usage records in Redis; the oldest are removed first.",
    ),
    Field("log_level", text.choice(LEVELS), "info", "debug, info, warning or error."),
    Field(
        "identity",
        text.identity,
        "",
        "Name of this process in the lease. Absent: host, pid and a random part.",
    ),
)


def load(environment: Mapping[str, str], flags: Mapping[str, str | None] | None = None) -> Settings:
    """Read the settings. Flags (by field name) override FAIRGATE_* variables and defaults.

    An empty value counts as absent. Raises InvalidSettings with every mistake, one per line.
    """
    values: dict[str, Any] = {}
    mistakes: list[str] = []
    for entry in FIELDS:
        written = (flags or {}).get(entry.name) or environment.get(entry.variable) or entry.default
        try:
            values[entry.name] = entry.parse(written) if written else None
        except InvalidInput as error:
            mistakes.append(_mistake(entry, str(error)))
    broken = {entry.name for entry in FIELDS} - set(values)
    mistakes += _contradictions(values, broken)
    if mistakes:
        raise InvalidSettings("\n".join(mistakes))
    values["identity"] = values["identity"] or text.own_identity()
    values["tls_names"] = values["tls_names"] or _service_names(values["namespace"])
    return Settings(**values)


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (flag, variable, value) of every setting, without passwords."""
    return [
        (entry.option, entry.variable, text.show(getattr(settings, entry.name))) for entry in FIELDS
    ]


def _contradictions(values: Mapping[str, Any], broken: set[str]) -> list[str]:
    """Return conflicts between valid settings. Settings in `broken` were reported already."""
    mistakes: list[str] = []
    roles = values.get("roles") or ()
    storing = [role for role in roles if role != "webhook"]
    if storing and values.get("redis_url") is None and "redis_url" not in broken:
        needed = f"needed by the role {' and '.join(storing)}; write redis://HOST:6379/0."
        mistakes.append(_mistake(_FIELD["redis_url"], needed))
    files = ("tls_cert_file", "tls_key_file", "tls_ca_file")
    absent = [name for name in files if values.get(name) is None and name not in broken]
    if absent and len(absent) < len(files):
        needed = "the certificate, its key and its CA belong together; set all three, or none."
        mistakes += [_mistake(_FIELD[name], needed) for name in absent]
    return mistakes + _address_conflicts(values, roles)


def _address_conflicts(values: Mapping[str, Any], roles: tuple[str, ...]) -> list[str]:
    used = [f"{role}_listen" for role in roles if role != "controller"]
    used += ["ops_listen", *(["aggregated_listen"] if "api" in roles else [])]
    mistakes: list[str] = []
    seen: dict[HostPort, Field] = {}
    for entry in (_FIELD[name] for name in used):
        at = values.get(entry.name)
        if at is None or at.port == 0:
            continue
        if at in seen:
            taken = f"{at} is taken by {seen[at].option} already; write another port."
            mistakes.append(_mistake(entry, taken))
        seen[at] = entry
    return mistakes


def _mistake(entry: Field, what: str) -> str:
    return f"{entry.option} ({entry.variable}): {what}"


def _service_names(namespace: str) -> tuple[str, ...]:
    hosts = [f"{service}.{namespace}.svc" for service in ("fairgate-webhook", "fairgate-api")]
    return tuple(name for host in hosts for name in (host, host + ".cluster.local"))


_FIELD = {entry.name: entry for entry in FIELDS}
