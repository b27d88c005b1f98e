"""The local cluster as a whole: up, down, and what one may ask of it in between.

Everything it starts or writes is in one folder, from which any later run can take it down.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from app.core.errors import ClusterError, InvalidInput
from app.dev import folder as folders
from app.dev.control_plane import ControlPlane
from app.dev.fairgate import ROLES, Fairgate, ops_url, process_name
from app.dev.interrupt import orderly
from app.dev.kubectl import Kubectl
from app.dev.options import Details, Options
from app.dev.processes import Process, Processes
from app.dev.progress import Progress, Silent
from app.dev.redis_server import given_redis, start_redis
from app.dev.tools import Tools, find
from app.tls.issue import write_private


class State(msgspec.Struct, frozen=True):
    """What a later run must know. `ready` only once `up` has ended well."""

    options: Options
    kubectl: str
    helm: str
    redis: str
    ready: bool


class Cluster:
    """One local cluster, in one folder; without a folder, the person's usual one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = (folder or folders.default_folder()).absolute()
        self.processes = Processes(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the person who set the cluster up, who may do anything."""
        return self.folder / "kubeconfig"

    @property
    def is_usual(self) -> bool:
        """Tell whether this is the cluster that commands mean when no folder is named."""
        return self.folder == folders.default_folder().absolute()

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server, one JSON document a line."""
        return self._control_plane().plan.audit_log

    def up(self, options: Options | None = None, progress: Progress | None = None) -> Details:
        """Bring everything up and return once it is ready; what already runs is kept.

        Leftovers of an earlier run in this folder are cleaned up first. A signal takes down what
        was started. Raises ToolMissing, ClusterError, InvalidInput.
        """
        wanted, told = options or Options(), progress or Silent()
        with orderly():
            tools = find(told)
            folders.claim(self.folder)
            with folders.alone(self.folder):
                if not self._is_up(wanted):
                    self._bring_up(wanted, tools, told)
        return self.details()

    def down(self) -> bool:
        """End every process and remove the folder; False if there was no cluster."""
        if not folders.is_ours(self.folder):
            return False
        with folders.alone(self.folder):
            self._take_down()
        return True

    def status(self) -> tuple[Details, list[str]] | None:
        """Return where everything is, and the names of what has died; None: no cluster is up."""
        state = self._state()
        if state is None or not state.ready:
            return None
        dead = {child.name for child in self.processes.recorded()}
        return self.details(), sorted(dead - {child.name for child in self.processes.alive()})

    def details(self) -> Details:
        """Return where everything is. Raises ClusterError if no cluster is up."""
        state = self._known()
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

    def user(self, name: str, groups: Sequence[str] = ()) -> str:
        """Return a kubeconfig that is this person. They have no right until RBAC gives some."""
        plan = self._control_plane().plan
        return plan.certificates.kubeconfig(plan.server, name, groups)

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as the person who set the cluster up and return what it printed.

        Raises ClusterError with kubectl's own complaint in it.
        """
        return self._kubectl(self._known()).run(*args, stdin=stdin)

    def install(self) -> None:
        """Apply the chart, for a Fairgate that runs outside the cluster, and start nothing.

        From then on GPU pods are refused, but in exempt namespaces, until the webhook runs.
        """
        state = self._known()
        self._fairgate(state).install(state.options.exempt)

    def start_fairgate(self, role: str, *, wait: bool = True) -> Process:
        """Start one more process of this role; without `wait` return before it is ready.

        The chart is installed first if it is not. Several controllers may run at once.
        """
        state = self._known()
        fairgate = self._fairgate(state)
        if fairgate.installation() is None:
            fairgate.install(state.options.exempt)
        child = fairgate.start(role, state.redis, state.options.environment)
        if wait:
            fairgate.wait([child])
        return child

    def fairgate(self) -> Fairgate:
        """Return Fairgate of this cluster, for who starts its processes in another way."""
        return self._fairgate(self._known())

    def stop_fairgate(
        self, role: str, sign: int = signal.SIGTERM, *, pid: int | None = None
    ) -> None:
        """End all processes of a role, or the one with this pid, and return once they are gone."""
        children = self.processes.alive(process_name(role))
        self.processes.stop([child for child in children if pid in (None, child.pid)], sign)

    def restart(self, name: str, sign: int = signal.SIGTERM) -> Process:
        """End the youngest process of this name, and start it again as it was.

        It returns at once: wait for what you need of it.
        """
        recorded = [child for child in self.processes.recorded() if child.name == name]
        if not recorded:
            raise InvalidInput(f"There is no process {name} in this cluster.")
        return self.processes.restart(recorded[-1], sign)

    def ops_urls(self, role: str) -> list[str]:
        """Return where the living processes of a role answer /readyz and /metrics."""
        return [ops_url(child) for child in self.processes.alive(process_name(role))]

    def renew_tokens(self) -> None:
        """Give the processes of Fairgate new tokens; those they have last a day."""
        self._fairgate(self._known()).renew_tokens()

    def _bring_up(self, options: Options, tools: Tools, told: Progress) -> None:
        self._clean()
        try:
            with told.step("Starting Kubernetes"):
                control_plane = ControlPlane.prepare(self.folder, self.processes, options.bodies)
                redis = given_redis() or start_redis(self.folder, self.processes, options.durable)
                groups = options.node_groups()
                control_plane.start(tools, groups, options.durable, options.pod_groups)
            state = State(options, str(tools.kubectl), str(tools.helm), redis, ready=False)
            self._write(state)
            if options.fairgate:
                self._start_all(state, told)
            self._write(msgspec.structs.replace(state, ready=True))
        except KeyboardInterrupt:
            self._take_down()
            raise
        except BaseException:
            self.processes.stop_all()  # the logs stay, to be read
            raise

    def _start_all(self, state: State, told: Progress) -> None:
        fairgate = self._fairgate(state)
        with told.step("Installing the chart"):
            fairgate.install(state.options.exempt)
        with told.step("Starting Fairgate"):
            more = state.options.environment
            fairgate.wait([fairgate.start(role, state.redis, more) for role in ROLES])

    def _is_up(self, wanted: Options) -> bool:
        """Tell whether this very cluster is up and whole."""
        state, status = self._state(), self.status()
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
        folders.empty(self.folder)

    def _take_down(self) -> None:
        self.processes.stop_all()
        folders.remove(self.folder)

    def _kubectl(self, state: State) -> Kubectl:
        return Kubectl(Path(state.kubectl), self.kubeconfig, self.folder)

    def _control_plane(self) -> ControlPlane:
        self._known()
        return ControlPlane.load(self.folder, self.processes)

    def _fairgate(self, state: State) -> Fairgate:
        control_plane = ControlPlane.load(self.folder, self.processes)
        return Fairgate(control_plane, self.processes, self._kubectl(state), Path(state.helm))

    def _known(self) -> State:
        state = self._state()
        if state is None:
            raise ClusterError(
                f"No local cluster is up in {self.folder}; start one by `fairgate dev up`."
            )
        return state

    def _state(self) -> State | None:
        try:
            return msgspec.json.decode((self.folder / "cluster.json").read_bytes(), type=State)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _write(self, state: State) -> None:
        write_private(self.folder / "cluster.json", msgspec.json.encode(state))
