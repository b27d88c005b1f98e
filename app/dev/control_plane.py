"""A real control plane on the loopback: etcd, API server, controllers, scheduler, KWOK nodes.

Knows in what order the programs start and when they are ready. Nothing here knows Fairgate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.dev import configuration, flags
from app.dev.api import Api
from app.dev.certificates import MASTERS, Certificates
from app.dev.flags import Plan, Ports
from app.dev.nodes import KWOK_USER, NodeGroup, create_nodes, grant_kwok, ready_nodes
from app.dev.processes import Process, Processes, Program
from app.dev.ready import Condition, free_ports, until
from app.dev.tools import Tools
from app.tls.issue import write_private

READY_SECONDS = 90.0
ADMIN = "fairgate-dev-admin"
CLIENTS = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kwok": KWOK_USER,
}


class ControlPlane:
    """The control plane of one folder: `prepare` once, `start`, later also `load`."""

    def __init__(self, plan: Plan, processes: Processes) -> None:
        self.plan = plan
        self._processes = processes

    @classmethod
    def prepare(cls, folder: Path, processes: Processes, bodies: bool = False) -> ControlPlane:
        """Choose ports, and write certificates, kubeconfigs and configuration."""
        plan = Plan(folder, Ports(*free_ports(5)), Certificates(folder / "pki"))
        for name in ("config", "logs"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        _write(plan.file("ports.json"), plan.ports)
        plan.certificates.create()
        _write_clients(plan)
        _write(plan.file("audit-policy.json"), configuration.audit_policy(bodies))
        _write(plan.file("admission.json"), configuration.admission(plan.kubeconfig("webhooks")))
        scheduler = configuration.scheduler(plan.kubeconfig("kube-scheduler"), flags.QPS)
        _write(plan.file("scheduler.json"), scheduler)
        return cls(plan, processes)

    @classmethod
    def load(cls, folder: Path, processes: Processes) -> ControlPlane:
        """Return the control plane that was prepared in this folder earlier."""
        ports = (folder / "config" / "ports.json").read_bytes()
        plan = Plan(folder, msgspec.json.decode(ports, type=Ports), Certificates(folder / "pki"))
        return cls(plan, processes)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the person who set the cluster up, who may do anything."""
        return self.plan.folder / "kubeconfig"

    def start(
        self,
        tools: Tools,
        groups: Sequence[NodeGroup],
        durable: bool,
        pod_groups: bool = False,
    ) -> None:
        """Start everything and return once every node takes pods. Raises ClusterError."""
        plan = self.plan
        needed = [
            self._start("etcd", tools.etcd, flags.etcd(plan, durable)),
            self._start("kube-apiserver", tools.apiserver, flags.apiserver(plan, pod_groups)),
        ]
        with self.api() as api:
            self._wait({"the API server": lambda: api.call("GET", "/readyz") is None}, needed)
            # The others come later, or they meet RBAC that is not there yet.
            grant_kwok(api)
            needed += [
                self._start("kube-controller-manager", tools.controllers, flags.controllers(plan)),
                self._start("kube-scheduler", tools.scheduler, flags.scheduler(plan)),
                self._start("kwok", tools.kwok, flags.kwok(plan)),
            ]
            self._await_nodes(api, groups, needed)

    def api(self) -> Api:
        """Return a connection as the person who set the cluster up."""
        pem = self.plan.certificates
        authority = pem.certificate("cluster-ca")
        return Api(self.plan.server, authority, pem.certificate(ADMIN), pem.key(ADMIN))

    def _await_nodes(self, api: Api, groups: Sequence[NodeGroup], needed: list[Process]) -> None:
        for group in groups:
            create_nodes(api, group)
        wanted = {name for group in groups for name in group.names()}
        # Without its service account the default namespace takes no pod.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        ready: dict[str, Condition] = {
            "the nodes": lambda: wanted <= ready_nodes(api),
            "the default service account": lambda: api.find(account) is not None,
        }
        self._wait(ready, needed)

    def _start(self, name: str, program: Path, arguments: Sequence[str]) -> Process:
        # Nothing of the caller's environment reaches them: a proxy or a KUBECONFIG would mislead.
        environment = {"PATH": os.defpath, "HOME": str(self.plan.folder)}
        return self._processes.start(Program(name, (str(program), *arguments), environment))

    def _wait(self, conditions: dict[str, Condition], needed: list[Process]) -> None:
        until(conditions, seconds=READY_SECONDS, check=lambda: self._processes.check(needed))


def _write_clients(plan: Plan) -> None:
    pem = plan.certificates
    pem.create_person(ADMIN, [MASTERS])
    admin = pem.kubeconfig(plan.server, ADMIN, [MASTERS])
    write_private(plan.folder / "kubeconfig", admin.encode())
    for program, user in CLIENTS.items():
        write_private(plan.kubeconfig(program), pem.kubeconfig(plan.server, user).encode())
    write_private(plan.kubeconfig("webhooks"), pem.webhook_client().encode())


def _write(path: Path, document: object) -> None:
    write_private(path, msgspec.json.encode(document))
