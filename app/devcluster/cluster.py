"""The local cluster: bring it up, take it down, and query or change it in between.

All its files and process records are in one folder, so that any later run can take it down.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.core.errors import ClusterError, InvalidInput
from app.core.policy import Mode
from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools, choose, find
from app.devcluster.cluster_options import ClusterOptions, Details
from app.devcluster.control_plane import ControlPlane
from app.devcluster.fairgate_install import ROLES, Fairgate, ops_url, process_name
from app.devcluster.kubectl import Kubectl
from app.devcluster.processes import ChildProcess, Processes
from app.devcluster.progress import NoProgress, SetupProgress
from app.devcluster.redis_server import given_redis, start_redis
from app.devcluster.signals import signals_as_interrupt
from app.devcluster.state_files import FolderKind, StateUnreadable, read_record, require_kind
from app.tls.certificate_authority import write_private


class ClusterState(msgspec.Struct, frozen=True):
    """State that a later run needs. `ready` is true only after `up` has succeeded."""

    options: ClusterOptions
    kubectl: str
    helm: str
    redis: str
    ready: bool


class LocalCluster:
    """One local cluster in one folder; by default the folder of `fairgate dev`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or folders.default_folder()).absolute()
        self.processes = Processes(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster administrator."""
        return self.folder / "kubeconfig"

    @property
    def is_default(self) -> bool:
        """Return whether this is the cluster that commands use by default."""
        return self.folder == folders.default_folder().absolute()

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, one JSON document per line."""
        return self._control_plane().plan.audit_log

    def up(
        self, options: ClusterOptions | None = None, progress: SetupProgress | None = None
    ) -> Details:
        """Bring the cluster up and return when it is ready. A running cluster is left as it is.

        Leftovers of an earlier run in this folder are removed first. A signal takes the cluster
        down again. Raises ToolMissing, ClusterError, InvalidInput.
        """
        wanted, told = options or ClusterOptions(), progress or NoProgress()
        with signals_as_interrupt():
            choice = choose(wanted.kubernetes, wanted.binaries)
            wanted = msgspec.structs.replace(
                wanted, kubernetes=choice.kubernetes.minor, binaries=str(choice.folder or "")
            )
            tools = find(told, choice)
            folders.claim_folder(self.folder, FolderKind.CLUSTER)
            with folders.lock_folder(self.folder):
                if not self._is_up(wanted):
                    self._bring_up(wanted, tools, told)
        return self.details()

    def down(self) -> bool:
        """End every process and remove the folder; False if there was no cluster.

        Raises InvalidInput if the folder has a node.
        """
        if not folders.is_ours(self.folder):
            return False
        require_kind(self.folder, FolderKind.CLUSTER)
        with folders.lock_folder(self.folder):
            self._take_down()
        return True

    def status(self) -> tuple[Details, list[str]] | None:
        """Return the details and the names of dead processes; None if no cluster is up."""
        state = self._read_state()
        if state is None or not state.ready:
            return None
        dead = {child.name for child in self.processes.recorded()}
        return self.details(), sorted(dead - {child.name for child in self.processes.alive()})

    def details(self) -> Details:
        """Return addresses, files and process ids. Raises ClusterError if no cluster is up."""
        state = self._require_state()
        fairgate = self._fairgate(state)
        installation = fairgate.installation()
        pids: dict[str, list[int]] = {}
        for child in self.processes.alive():
            pids.setdefault(child.name, []).append(child.pid)
        return Details(
            kubeconfig=str(self.kubeconfig),
            kubectl=state.kubectl,
            api=installation.api if installation else None,
            ca=str(fairgate.ca) if fairgate.ca.exists() else None,
            webhook=installation.webhook if installation else None,
            redis=state.redis,
            pids=pids,
        )

    def create_user(self, name: str, groups: Sequence[str] = ()) -> str:
        """Return a kubeconfig for a new user. The user has no rights until RBAC grants some."""
        plan = self._control_plane().plan
        return plan.certificates.kubeconfig(plan.server, name, groups)

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as the cluster administrator and return its output.

        Raises ClusterError with the error output of kubectl.
        """
        return self._kubectl(self._require_state()).run(*args, stdin=stdin)

    def install(self) -> None:
        """Apply the chart for a Fairgate that runs outside the cluster. No process is started.

        Nothing is held or refused until the webhook runs.
        """
        state = self._require_state()
        self._install(state)

    def _install(self, state: ClusterState) -> None:
        options = state.options
        mode = Mode(options.environment.get("FAIRGATE_MODE", Mode.ENFORCE.value))
        self._fairgate(state).install(options.exempt, mode)

    def start_fairgate(self, role: str, *, wait: bool = True) -> ChildProcess:
        """Start one more process of a role. If `wait` is false, return before it is ready.

        The chart is installed first if needed. Several controllers may run at once.
        """
        state = self._require_state()
        fairgate = self._fairgate(state)
        if fairgate.installation() is None:
            self._install(state)
        child = fairgate.start(role, state.redis, state.options.environment)
        if wait:
            fairgate.wait_until_ready([child])
        return child

    def fairgate(self) -> Fairgate:
        """Return Fairgate of this cluster, for callers that start its processes themselves."""
        return self._fairgate(self._require_state())

    def stop_fairgate(
        self, role: str, sign: int = signal.SIGTERM, *, pid: int | None = None
    ) -> None:
        """End all processes of a role, or the one with this pid; return when they are gone."""
        children = self.processes.alive(process_name(role))
        self.processes.stop([child for child in children if pid in (None, child.pid)], sign)

    def restart(self, name: str, sign: int = signal.SIGTERM) -> ChildProcess:
        """End the youngest process of this name, and start it again with the same arguments.

        Returns before the new process is ready.
        """
        recorded = [child for child in self.processes.recorded() if child.name == name]
        if not recorded:
            raise InvalidInput(f"There is no process {name} in this cluster.")
        return self.processes.restart(recorded[-1], sign)

    def ops_urls(self, role: str) -> list[str]:
        """Return the URLs at which the running processes of a role serve /readyz and /metrics."""
        return [ops_url(child) for child in self.processes.alive(process_name(role))]

    def renew_tokens(self) -> None:
        """Write new tokens for the processes of Fairgate. A token is valid for a day."""
        self._fairgate(self._require_state()).renew_tokens()

    def _bring_up(self, options: ClusterOptions, tools: Tools, progress: SetupProgress) -> None:
        self._clean()
        try:
            with progress.step("Starting Kubernetes"):
                control_plane = ControlPlane.prepare(self.folder, self.processes, options.bodies)
                redis = given_redis() or start_redis(self.folder, self.processes, options.durable)
                control_plane.start(tools, options.durable, options.pod_groups)
                control_plane.simulate_nodes(tools, options.node_groups())
            state = ClusterState(options, str(tools.kubectl), str(tools.helm), redis, ready=False)
            self._write_state(state)
            if options.fairgate:
                self._start_fairgate_roles(state, progress)
            self._write_state(msgspec.structs.replace(state, ready=True))
        except KeyboardInterrupt:
            self._take_down()
            raise
        except BaseException:
            self.processes.stop_all()  # keeps the logs
            raise

    def _start_fairgate_roles(self, state: ClusterState, progress: SetupProgress) -> None:
        fairgate = self._fairgate(state)
        with progress.step("Installing the chart"):
            self._install(state)
        with progress.step("Starting Fairgate"):
            more = state.options.environment
            fairgate.wait_until_ready([fairgate.start(role, state.redis, more) for role in ROLES])

    def _is_up(self, wanted: ClusterOptions) -> bool:
        """Return whether this cluster is up and all its processes run.

        A cluster whose files cannot be read is not up. Raises InvalidInput if it has other options.
        """
        try:
            state, status = self._read_state(), self.status()
        except StateUnreadable:
            return False
        if state is None or status is None or status[1]:
            return False
        if state.options != wanted:
            raise InvalidInput(
                f"A cluster with other options runs in {self.folder}; take it down first "
                "(fairgate dev down), or name another folder by --dir."
            )
        if self._fairgate(state).installation() is not None:
            self.renew_tokens()
        return True

    def _clean(self) -> None:
        self.processes.stop_all()
        folders.empty_folder(self.folder)

    def _take_down(self) -> None:
        self.processes.stop_all()
        folders.remove_folder(self.folder)

    def _kubectl(self, state: ClusterState) -> Kubectl:
        return Kubectl(Path(state.kubectl), self.kubeconfig, self.folder)

    def _control_plane(self) -> ControlPlane:
        self._require_state()
        return ControlPlane.load(self.folder, self.processes)

    def _fairgate(self, state: ClusterState) -> Fairgate:
        control_plane = ControlPlane.load(self.folder, self.processes)
        return Fairgate(control_plane, self.processes, self._kubectl(state), Path(state.helm))

    def _require_state(self) -> ClusterState:
        state = self._read_state()
        if state is None:
            raise ClusterError(
                f"No local cluster is up in {self.folder}; start one by `fairgate dev up`."
            )
        return state

    def _read_state(self) -> ClusterState | None:
        return read_record(self.folder, "cluster.json", ClusterState)

    def _write_state(self, state: ClusterState) -> None:
        write_private(self.folder / "cluster.json", msgspec.json.encode(state))
