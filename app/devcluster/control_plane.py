"""A real control plane on the loopback: etcd, API server, controllers, scheduler, KWOK nodes.

Starts the programs in order and waits until they are ready. Independent of Fairgate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from app.devcluster import component_config, component_flags
from app.devcluster.api_client import SetupClient
from app.devcluster.binaries import Tools
from app.devcluster.certificates import MASTERS, Certificates
from app.devcluster.component_flags import ControlPlanePlan, Network, Ports
from app.devcluster.nodes import KWOK_USER, NodeGroup, create_nodes, grant_kwok, ready_nodes
from app.devcluster.processes import ChildProcess, Processes, Program, child_environment
from app.devcluster.readiness import ReadyCondition, free_ports, wait_until
from app.devcluster.state_files import StateUnreadable, down_command, read_record
from app.tls.certificate_authority import write_private

T = TypeVar("T")

READY_SECONDS = 90.0
ADMIN = "fairgate-dev-admin"
CLIENTS = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kwok": KWOK_USER,
}


class ControlPlane:
    """The control plane of one folder. Call `prepare` and `start` once; later runs `load` it."""

    def __init__(self, plan: ControlPlanePlan, processes: Processes) -> None:
        self.plan = plan
        self._processes = processes

    @classmethod
    def prepare(
        cls,
        folder: Path,
        processes: Processes,
        bodies: bool = False,
        network: Network | None = None,
    ) -> ControlPlane:
        """Choose ports, and write certificates, kubeconfigs and configuration."""
        plan = ControlPlanePlan(
            folder, Ports(*free_ports(5)), Certificates(folder / "pki"), network or Network()
        )
        for name in ("config", "logs"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        _write(plan.file("ports.json"), plan.ports)
        _write(plan.file("network.json"), plan.network)
        plan.certificates.create([plan.network.address, plan.network.api_service])
        _write_clients(plan)
        _write(plan.file("audit-policy.json"), component_config.audit_policy(bodies))
        _write(plan.file("admission.json"), component_config.admission(plan.kubeconfig("webhooks")))
        scheduler = component_config.scheduler(
            plan.kubeconfig("kube-scheduler"), component_flags.QPS
        )
        _write(plan.file("scheduler.json"), scheduler)
        return cls(plan, processes)

    @classmethod
    def load(cls, folder: Path, processes: Processes) -> ControlPlane:
        """Return the control plane that was prepared in this folder earlier."""
        ports = _read(folder, "ports.json", Ports)
        network = _read(folder, "network.json", Network)
        return cls(
            ControlPlanePlan(folder, ports, Certificates(folder / "pki"), network), processes
        )

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster administrator."""
        return self.plan.folder / "kubeconfig"

    def start(self, tools: Tools, durable: bool, pod_groups: bool = False) -> None:
        """Start all programs but KWOK; return when pods can be created. Raises ClusterError."""
        plan = self.plan
        extra = tools.kubernetes.pod_group_flags() if pod_groups else {}
        gates = {flag: value for flag, value in extra.items() if flag == "feature-gates"}
        # The API server reads this file again when it changes, so a provider can be added later.
        _write(plan.file(component_flags.AUTHENTICATION), component_config.authentication())
        needed = [
            self._start("etcd", tools.etcd, component_flags.etcd(plan, durable)),
            self._start("kube-apiserver", tools.apiserver, component_flags.apiserver(plan, extra)),
        ]
        with self.api() as api:
            self._wait({"the API server": lambda: api.call("GET", "/readyz") is None}, needed)
            # The others start later, because RBAC must exist before they call the API server.
            needed += [
                self._start(
                    "kube-controller-manager", tools.controllers, component_flags.controllers(plan)
                ),
                self._start(
                    "kube-scheduler", tools.scheduler, component_flags.scheduler(plan, gates)
                ),
            ]
            # The default namespace refuses pods until its service account exists.
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            self._wait(
                {"the default service account": lambda: api.find(account) is not None}, needed
            )

    def simulate_nodes(self, tools: Tools, groups: Sequence[NodeGroup]) -> None:
        """Start KWOK, and return when every node of these groups accepts pods."""
        with self.api() as api:
            grant_kwok(api)
            kwok = self._start("kwok", tools.kwok, component_flags.kwok(self.plan))
            for group in groups:
                create_nodes(api, group)
            wanted = {name for group in groups for name in group.names()}
            self._wait({"the nodes": lambda: wanted <= ready_nodes(api)}, [kwok])

    def api(self) -> SetupClient:
        """Return a connection as the cluster administrator."""
        pem = self.plan.certificates
        authority = pem.certificate("cluster-ca")
        return SetupClient(self.plan.server, authority, pem.certificate(ADMIN), pem.key(ADMIN))

    def _start(self, name: str, program: Path, arguments: Sequence[str]) -> ChildProcess:
        environment = child_environment(self.plan.folder)
        return self._processes.start(Program(name, (str(program), *arguments), environment))

    def _wait(self, conditions: dict[str, ReadyCondition], needed: list[ChildProcess]) -> None:
        wait_until(conditions, seconds=READY_SECONDS, check=lambda: self._processes.check(needed))


def _write_clients(plan: ControlPlanePlan) -> None:
    pem = plan.certificates
    pem.create_person(ADMIN, [MASTERS])
    admin = pem.kubeconfig(plan.server, ADMIN, [MASTERS])
    write_private(plan.folder / "kubeconfig", admin.encode())
    for program, user in CLIENTS.items():
        write_private(plan.kubeconfig(program), pem.kubeconfig(plan.server, user).encode())
    write_private(plan.kubeconfig("webhooks"), pem.webhook_client().encode())


def _read(folder: Path, name: str, kind: type[T]) -> T:
    found = read_record(folder, f"config/{name}", kind)
    if found is None:
        raise StateUnreadable(
            f"{folder}/config/{name} is missing; run `{down_command(folder)}` first."
        )
    return found


def _write(path: Path, document: object) -> None:
    write_private(path, msgspec.json.encode(document))
