"""A cluster with one real node: bring it up, take it down, query it, load images.

All its files and process records are in one folder, so that any later run can take it down.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.core.errors import ClusterError
from app.devcluster import state_dir as folders
from app.devcluster.api_client import SetupClient
from app.devcluster.binaries import Tools
from app.devcluster.component_flags import Network
from app.devcluster.control_plane import ControlPlane
from app.devcluster.kubectl import Kubectl
from app.devcluster.node import addresses, component_files, images, kernel_state
from app.devcluster.node.namespaces import Namespaces, check_machine
from app.devcluster.node.requirements import NodeTools, find
from app.devcluster.nodes import GPU, RBAC, ready_nodes
from app.devcluster.processes import Processes
from app.devcluster.progress import NoProgress, SetupProgress
from app.devcluster.readiness import wait_until
from app.devcluster.signals import signals_as_interrupt
from app.devcluster.state_files import FolderKind, StateUnreadable, read_record, require_kind
from app.tls.certificate_authority import write_private

READY_SECONDS = 120.0
GPUS = 8
NODE_PATH = f"/api/v1/nodes/{addresses.NODE_NAME}"


class RealNodeState(msgspec.Struct, frozen=True):
    """State that a later run needs. `ready` is true only after `up` has succeeded."""

    gpus: int
    kubectl: str
    helm: str
    ready: bool


class NodeDetails(msgspec.Struct, frozen=True):
    """Addresses, files and processes; the stable form of `fairgate dev node status -o json`.

    `gpus`: the number that the node offers now. `pids`: running processes. `dead`: processes that
    ended by themselves.
    """

    kubeconfig: str
    kubectl: str
    helm: str
    server: str
    node: str
    gpus: int
    images: list[str]
    logs: str
    pids: dict[str, int]
    dead: list[str]


class RealNode:
    """The real node of one folder. This machine can have one node at a time."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or folders.state_folder() / "node").absolute()
        self.processes = Processes(self.folder)
        self.namespaces = Namespaces(self.folder, self.processes)

    @property
    def _kernel(self) -> Path:
        """The file with the settings of the kernel before the node."""
        return self.folder / "kernel.json"

    @property
    def is_node(self) -> bool:
        """Return whether the folder has a node, or leftovers of one."""
        return self._kernel.exists()

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster administrator."""
        return self.folder / "kubeconfig"

    def up(self, gpus: int = GPUS, progress: SetupProgress | None = None) -> NodeDetails:
        """Bring the node up and return when it offers its GPUs. A running node is left as it is.

        Leftovers of an earlier run in this folder are removed first. A signal takes the node down
        again. Raises ToolMissing, ClusterError, InvalidInput.
        """
        told = progress or NoProgress()
        with signals_as_interrupt():
            tools, node_tools = find(told)
            folders.claim_folder(self.folder, FolderKind.NODE)
            with folders.lock_folder(self.folder):
                if not self._is_up():
                    self._take_down()
                    check_machine(self.folder)
                    self._bring_up(tools, node_tools, gpus, told)
        return self.details()

    def down(self) -> bool:
        """End every process, and remove mounts, network devices, cgroups and the folder.

        False if there was no node. Raises InvalidInput if the folder has a cluster.
        """
        if not folders.is_ours(self.folder):
            return False
        require_kind(self.folder, FolderKind.NODE)
        with folders.lock_folder(self.folder):
            self._take_down()
            folders.remove_folder(self.folder)
        return True

    def status(self) -> NodeDetails | None:
        """Return the details; None if no node is up."""
        state = self._read_state()
        return self.details() if state is not None and state.ready else None

    def details(self) -> NodeDetails:
        """Return addresses, files and processes. Raises ClusterError if no node is up."""
        state = self._require_state()
        alive = {child.name: child.pid for child in self.processes.alive()}
        dead = sorted({child.name for child in self.processes.recorded()} - set(alive))
        works = not dead
        return NodeDetails(
            kubeconfig=str(self.kubeconfig),
            kubectl=state.kubectl,
            helm=state.helm,
            server=self._control_plane().plan.server,
            node=addresses.NODE_NAME,
            gpus=self._gpus() if works else 0,
            images=images.names(self.namespaces) if works else [],
            logs=str(self.folder / "logs"),
            pids=alive,
            dead=dead,
        )

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as the cluster administrator and return its output. Raises ClusterError."""
        kubectl = Kubectl(Path(self._require_state().kubectl), self.kubeconfig, self.folder)
        return kubectl.run(*args, stdin=stdin)

    def load(self, archive: Path) -> list[str]:
        """Import an image archive, and return the names of all images of the node."""
        self._require_state()
        return images.load(self.namespaces, archive)

    def api(self) -> SetupClient:
        """Return a connection as the cluster administrator."""
        return self._control_plane().api()

    def _is_up(self) -> bool:
        """Return whether all processes of the node run. If its files are damaged, it is not up."""
        try:
            details = self.status()
        except StateUnreadable:
            return False
        return details is not None and not details.dead

    def _bring_up(
        self, tools: Tools, node_tools: NodeTools, gpus: int, progress: SetupProgress
    ) -> None:
        state = RealNodeState(gpus, str(tools.kubectl), str(tools.helm), ready=False)
        try:
            with progress.step("Creating the namespaces of the node"):
                kernel_state.prepare(self._kernel)
                self.namespaces.create(node_tools.pause)
            with progress.step("Starting Kubernetes", "10 s"):
                network = Network(addresses.HOST, addresses.SERVICES)
                control_plane = ControlPlane.prepare(self.folder, self.processes, network=network)
                control_plane.start(tools, durable=False)
            self._write_state(state)
            with progress.step("Starting containerd"):
                self._start_containerd(node_tools)
            with progress.step(f"Starting the node with {gpus} {GPU}", "15 s"):
                self._start_node(control_plane, node_tools, gpus)
            self._write_state(msgspec.structs.replace(state, ready=True))
        except KeyboardInterrupt:
            self._take_down()
            folders.remove_folder(self.folder)
            raise
        except BaseException:
            self._end_processes()  # keeps the logs
            raise

    def _start_containerd(self, tools: NodeTools) -> None:
        config = self.folder / "config"
        networks = config / "cni"
        networks.mkdir()
        _write_json(networks / "10-fairgate.conflist", component_files.cni())
        settings = component_files.containerd(tools.cni, networks)
        write_private(config / "containerd.toml", settings.encode())
        self.namespaces.start("containerd", "containerd", "--config", f"{config}/containerd.toml")
        self._wait({"containerd": self._has_containerd})
        archive = self.folder / "pause.tar"
        images.write_archive(
            archive, component_files.SANDBOX_IMAGE, {"/pause": tools.pause}, "/pause"
        )
        images.load(self.namespaces, archive)

    def _start_node(self, control_plane: ControlPlane, tools: NodeTools, gpus: int) -> None:
        plan, start = control_plane.plan, self.namespaces.start
        pem = plan.certificates
        pem.create_kubelet(addresses.NODE_NAME, addresses.NODE)
        for user, groups in _USERS.items():
            name = user.rpartition(":")[2]
            text = pem.kubeconfig(plan.server, user, groups)
            write_private(plan.kubeconfig(name), text.encode())
        _write_json(plan.file("kubelet.json"), component_files.kubelet(plan))
        proxy = component_files.kube_proxy(plan.kubeconfig("kube-proxy"))
        _write_json(plan.file("kube-proxy.json"), proxy)
        corefile = component_files.corefile(plan.kubeconfig("coredns"))
        write_private(plan.file("Corefile"), corefile.encode())
        with control_plane.api() as api:
            _grant_coredns(api)
            start(
                "kubelet",
                str(tools.kubelet),
                f"--config={plan.file('kubelet.json')}",
                f"--kubeconfig={plan.kubeconfig(addresses.NODE_NAME)}",
                f"--hostname-override={addresses.NODE_NAME}",
                f"--node-ip={addresses.NODE}",
                f"--node-labels={GPU}.product=NVIDIA-H100-80GB-HBM3",
            )
            start("kube-proxy", str(tools.kube_proxy), f"--config={plan.file('kube-proxy.json')}")
            start("coredns", str(tools.coredns), "-conf", str(plan.file("Corefile")))
            start("fake-device-plugin", str(tools.device_plugin), GPU, str(gpus))
            self._wait(
                {
                    "the node": lambda: addresses.NODE_NAME in ready_nodes(api),
                    f"{gpus} {GPU} of the node": lambda: _offered(api) == gpus,
                }
            )

    def _wait(self, conditions: dict[str, Any]) -> None:
        wait_until(
            conditions,
            seconds=READY_SECONDS,
            check=lambda: self.processes.check(self.processes.recorded()),
        )

    def _has_containerd(self) -> bool:
        try:
            images.names(self.namespaces)
        except ClusterError:
            return False
        return True

    def _gpus(self) -> int:
        with self.api() as api:
            return _offered(api)

    def _end_processes(self) -> None:
        """End everything at once, without a delay for pods: the state is removed anyway."""
        self.processes.stop_all(signal.SIGKILL)
        self.namespaces.disconnect()

    def _take_down(self) -> None:
        self._end_processes()
        kernel_state.restore(self._kernel)
        folders.empty_folder(self.folder)

    def _control_plane(self) -> ControlPlane:
        return ControlPlane.load(self.folder, self.processes)

    def _require_state(self) -> RealNodeState:
        state = self._read_state()
        if state is None:
            raise ClusterError(
                f"No node is up in {self.folder}; start one by `fairgate dev node up`."
            )
        return state

    def _read_state(self) -> RealNodeState | None:
        return read_record(self.folder, "node.json", RealNodeState)

    def _write_state(self, state: RealNodeState) -> None:
        _write_json(self.folder / "node.json", state)


_USERS: dict[str, Sequence[str]] = {
    f"system:node:{addresses.NODE_NAME}": ["system:nodes"],
    "system:kube-proxy": [],
    "coredns": [],
}


def _offered(api: SetupClient) -> int:
    node = api.find(NODE_PATH) or {}
    return int(node.get("status", {}).get("allocatable", {}).get(GPU, 0))


def _grant_coredns(api: SetupClient) -> None:
    role = component_files.coredns_role()
    api.create(f"{RBAC}/clusterroles", role)
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": role["apiVersion"],
        "kind": "ClusterRoleBinding",
        "metadata": role["metadata"],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "coredns"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "coredns"}],
    }
    api.create(f"{RBAC}/clusterrolebindings", binding)


def _write_json(path: Path, document: object) -> None:
    write_private(path, msgspec.json.encode(document))
