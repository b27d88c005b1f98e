"""What one may ask of a local cluster, and what one is told of it. Values only."""

from __future__ import annotations

import msgspec

from app.dev.nodes import NodeGroup, gpu_nodes


class Options(msgspec.Struct, frozen=True):
    """How to bring a cluster up.

    `groups`: its nodes, in place of `nodes` nodes with `gpus` GPUs each. `fairgate`: install and
    start Fairgate too. `durable`: etcd and Redis keep what they acknowledged, at the price of
    speed. `exempt`: namespaces Fairgate leaves alone besides those of the chart. `environment`:
    more settings for the processes of Fairgate. `bodies`: the API server's audit log tells what was
    sent and answered. `pod_groups`: it offers Kubernetes' own pod groups, which are alpha.
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

    def node_groups(self) -> tuple[NodeGroup, ...]:
        """Return the groups of nodes that are meant."""
        return self.groups or (gpu_nodes(self.nodes, self.gpus),)


class Details(msgspec.Struct, frozen=True):
    """Where everything is; the stable form of `fairgate dev up --output json`.

    `api`, `ca` and `webhook` are None without Fairgate. `pids` holds living processes only.
    """

    kubeconfig: str
    kubectl: str
    api: str | None
    ca: str | None
    webhook: str | None
    redis: str
    pids: dict[str, list[int]]
