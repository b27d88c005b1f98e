"""Options and details of a local cluster. Values only."""

from __future__ import annotations

import msgspec

from app.devcluster.nodes import NodeGroup, gpu_nodes


class ClusterOptions(msgspec.Struct, frozen=True):
    """How to bring a cluster up.

    `groups`: its nodes, in place of `nodes` nodes with `gpus` GPUs each. `fairgate`: install and
    start Fairgate too. `durable`: etcd and Redis persist acknowledged writes, which is slower.
    `exempt`: exempt namespaces in addition to those of the chart. `environment`: more settings for
    the processes of Fairgate. `bodies`: the audit log of the API server has requests and responses.
    `pod_groups`: the API server offers the pod groups of Kubernetes, which are behind feature
    gates, and the scheduler reads them.
    `kubernetes`: the version, such as `1.37`. `binaries`: the folder that is searched first for the
    programs. If they are empty, `binaries.choose` says what decides.
    """

    nodes: int = 8
    gpus: int = 8
    groups: tuple[NodeGroup, ...] = ()
    fairgate: bool = True
    durable: bool = False
    exempt: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    bodies: bool = False
    pod_groups: bool = False
    kubernetes: str = ""
    binaries: str = ""

    def node_groups(self) -> tuple[NodeGroup, ...]:
        """Return `groups`, or the default group."""
        return self.groups or (gpu_nodes(self.nodes, self.gpus),)


class Details(msgspec.Struct, frozen=True):
    """Addresses, files and processes; the stable form of `fairgate dev up --output json`.

    `api`, `ca` and `webhook` are None without Fairgate. `pids` contains running processes only.
    """

    kubeconfig: str
    kubectl: str
    api: str | None
    ca: str | None
    webhook: str | None
    redis: str
    pids: dict[str, list[int]]
