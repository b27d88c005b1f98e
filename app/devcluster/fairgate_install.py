"""Fairgate in the local cluster: the chart, and its processes under their service accounts.

Each process has the same input as in a pod: the token of its service account, and settings.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import yaml

from app.core.errors import ClusterError, InvalidInput, ToolMissing
from app.core.policy import Mode
from app.devcluster.control_plane import ControlPlane
from app.devcluster.go_build import SOURCE
from app.devcluster.kubectl import Kubectl
from app.devcluster.nodes import KWOK_USER
from app.devcluster.processes import ChildProcess, Processes, Program, child_environment
from app.devcluster.readiness import (
    ReadyCondition,
    answers_ready,
    free_ports,
    has_ca,
    is_aggregated,
    is_enforcing,
    is_established,
    is_pod_held,
    wait_until,
)
from app.tls.certificate_authority import write_private

CHART = SOURCE / "charts" / "fairgate"
NAMESPACE = "fairgate-system"
SECRET = "fairgate-webhook-tls"  # noqa: S105 (a name)
KINDS = ("tenants", "pools", "policies")
ROLES = ("webhook", "controller", "api")
UNFAIR = ("unfair-greedy", "unfair-modest")
"""Namespaces that are exempt in every local cluster, for the first round of the demo."""

TLS_NAMES = ("127.0.0.1", "localhost", f"fairgate-api.{NAMESPACE}.svc")
"""Names in the serving certificate. The API server uses the last one for the aggregated API."""

READY_SECONDS = 120.0
ESTABLISHED_SECONDS = 30.0
TOKEN_SECONDS = 24 * 3600


class ChartValues(msgspec.Struct, frozen=True):
    """Values of the installed chart. The processes use the same values."""

    webhook_port: int
    api_port: int
    aggregated_port: int
    managed: tuple[str, ...]
    exempt: tuple[str, ...]

    @property
    def ports(self) -> tuple[int, int, int]:
        return (self.webhook_port, self.api_port, self.aggregated_port)

    @property
    def webhook(self) -> str:
        return f"https://127.0.0.1:{self.webhook_port}/admit"

    @property
    def api(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"


class Fairgate:
    """Fairgate in one local cluster."""

    def __init__(
        self, control_plane: ControlPlane, processes: Processes, kubectl: Kubectl, helm: Path
    ) -> None:
        self._control_plane = control_plane
        self._processes = processes
        self._kubectl = kubectl
        self._helm = helm
        self._folder = control_plane.plan.folder / "fairgate"

    @property
    def ca(self) -> Path:
        """The file with the CA of webhook and API. It exists after the webhook was ready."""
        return self._folder / "ca.crt"

    def installation(self) -> ChartValues | None:
        """Return the values of the installed chart; None if it is not installed."""
        try:
            return msgspec.json.decode(self._installation_file.read_bytes(), type=ChartValues)
        except FileNotFoundError:
            return None

    def install(self, exempt: Sequence[str] = (), mode: Mode = Mode.ENFORCE) -> ChartValues:
        """Apply the chart for processes outside the cluster, and store its values."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        defaults = _chart_values()
        left_alone = dict.fromkeys([*defaults["exemptNamespaces"], *UNFAIR, *exempt])
        before = self.installation()
        webhook, rest, aggregated = before.ports if before else free_ports(3)
        managed = tuple(defaults["managedResources"])
        wanted = ChartValues(webhook, rest, aggregated, managed, tuple(left_alone))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        with self._control_plane.api() as api:
            api.create("/api/v1/namespaces", namespace)
        self._kubectl.apply(self._render_chart(wanted, mode))
        self._wait_for_crds()
        write_private(self._installation_file, msgspec.json.encode(wanted))
        return wanted

    def _wait_for_crds(self) -> None:
        with self._control_plane.api() as api:
            conditions = {
                f"the kind {crd}": partial(is_established, api, crd)
                for crd in (f"{kind}.fairgate.io" for kind in KINDS)
            }
            wait_until(conditions, seconds=ESTABLISHED_SECONDS)

    def start(self, role: str, redis: str, more: Mapping[str, str]) -> ChildProcess:
        """Start one process of a role, under the service account of that role."""
        return self._processes.start(self.program(role, redis, more))

    def program(self, role: str, redis: str, more: Mapping[str, str]) -> Program:
        """Return the program of a role that `start` would start."""
        if role not in ROLES:
            raise InvalidInput(f"Fairgate has no role {role}; there are {', '.join(ROLES)}.")
        installation = self._require_installation()
        environment = {
            "PATH": os.defpath,
            "HOME": str(self._folder),
            "PYTHONPATH": str(SOURCE),
            "FAIRGATE_ROLES": role,
            "FAIRGATE_KUBECONFIG": str(self._kubeconfig(role)),
            "FAIRGATE_NAMESPACE": NAMESPACE,
            "FAIRGATE_REDIS_URL": redis,
            "FAIRGATE_WEBHOOK_LISTEN": f"127.0.0.1:{installation.webhook_port}",
            "FAIRGATE_API_LISTEN": f"127.0.0.1:{installation.api_port}",
            "FAIRGATE_AGGREGATED_LISTEN": f"127.0.0.1:{installation.aggregated_port}",
            "FAIRGATE_OPS_LISTEN": f"127.0.0.1:{free_ports(1)[0]}",
            "FAIRGATE_METRICS_PUBLIC": "true",  # on the loopback only
            "FAIRGATE_TLS_NAMES": ",".join(TLS_NAMES),
            "FAIRGATE_MANAGED_RESOURCES": ",".join(installation.managed),
            "FAIRGATE_EXEMPT_NAMESPACES": ",".join(installation.exempt),
            "FAIRGATE_RULES": json.dumps({"phase_writers": [KWOK_USER]}),
            "FAIRGATE_DRAIN_SECONDS": "0",
            "FAIRGATE_TLS_CLIENT_CA_FILE": str(self._client_ca),
            **more,
        }
        argv = (sys.executable, "-P", "-m", "app", "serve")
        return Program(process_name(role), argv, environment)

    def wait_until_ready(self, children: Sequence[ChildProcess]) -> None:
        """Return when these processes are ready and, if the webhook is included, pods are held."""
        conditions: dict[str, ReadyCondition] = {
            f"{child.name} (pid {child.pid})": answers_ready(ops_url(child)) for child in children
        }
        with self._control_plane.api() as api:
            if any(child.name == process_name("webhook") for child in children):
                installation = self._require_installation()
                conditions["its CA in the webhook's configuration"] = lambda: has_ca(api)
                conditions["policies that deny"] = lambda: is_enforcing(api)
                conditions["a pod held by the webhook"] = lambda: is_pod_held(
                    api, installation.managed, installation.exempt
                )
            if any(child.name == process_name("api") for child in children):
                conditions["the API behind the API server"] = lambda: is_aggregated(api)
            wait_until(
                conditions,
                seconds=READY_SECONDS,
                check=lambda: self._processes.check(children),
            )
            secret = api.find(f"/api/v1/namespaces/{NAMESPACE}/secrets/{SECRET}")
        if secret is not None:
            write_private(self.ca, base64.b64decode(secret["data"]["ca.crt"]))

    def renew_tokens(self) -> None:
        """Write a new token for every role. Processes reread the files on their own."""
        for role in ROLES:
            self._write_token(role)

    def _require_installation(self) -> ChartValues:
        installation = self.installation()
        if installation is None:
            raise ClusterError("Fairgate is not installed in this cluster; install it first.")
        return installation

    @property
    def _client_ca(self) -> Path:
        """The CA of the client certificate that the API server sends to webhooks."""
        return self._control_plane.plan.certificates.certificate("webhook-client-ca")

    @property
    def _installation_file(self) -> Path:
        return self._folder / "installation.json"

    def _render_chart(self, wanted: ChartValues, mode: Mode) -> str:
        values = self._folder / "values.json"
        document = {
            "mode": mode.value,
            "external": {
                "webhookUrl": wanted.webhook,
                "aggregatedPort": wanted.aggregated_port,
            },
            "exemptNamespaces": list(wanted.exempt),
            "phaseWriters": [KWOK_USER],
        }
        write_private(values, msgspec.json.encode(document))
        command = [str(self._helm), "template", "fairgate", str(CHART)]
        command += ["--namespace", NAMESPACE, "--values", str(values)]
        environment = child_environment(self._folder)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"The chart in {CHART} cannot be rendered: {done.stderr.strip()}")
        return done.stdout

    def _kubeconfig(self, role: str) -> Path:
        token = self._write_token(role)
        path = self._folder / f"{role}.kubeconfig"
        plan = self._control_plane.plan
        text = plan.certificates.kubeconfig_for(
            plan.server, process_name(role), {"tokenFile": str(token)}
        )
        write_private(path, text.encode())
        return path

    def _write_token(self, role: str) -> Path:
        path = self._folder / f"{role}.token"
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{process_name(role)}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        }
        with self._control_plane.api() as api:
            write_private(path, api.call("POST", account, request)["status"]["token"].encode())
        return path


def process_name(role: str) -> str:
    """Return the name of the processes and of the service account of a role."""
    return f"fairgate-{role}"


def ops_url(child: ChildProcess) -> str:
    """Return the URL at which a process of Fairgate serves /livez, /readyz and /metrics."""
    return f"http://{child.environment['FAIRGATE_OPS_LISTEN']}"


def _chart_values() -> dict[str, Any]:
    try:
        values = yaml.safe_load((CHART / "values.yaml").read_text())
    except OSError as error:
        raise ToolMissing(
            f"{error.filename} cannot be read ({error.strerror}); the local cluster needs "
            "Fairgate's source folder, a wheel is not enough."
        ) from error
    return dict(values)
