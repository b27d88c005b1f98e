"""A real control plane, Fairgate processes behind proxies, load, and the observer's verdict.

The test injects the faults through a `Rig`. The `Rig` itself only sets up, repairs and waits.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from app.core.errors import FairgateError
from app.devcluster.api_client import SetupClient
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.control_plane import ControlPlane
from app.devcluster.fairgate_install import KINDS
from app.devcluster.processes import last_lines
from app.devcluster.readiness import has_ca, is_enforcing, is_pod_held, wait_until
from app.devcluster.redis_server import start_redis
from app.kube.enforcement_probes import NAMESPACE as CANARY
from tests.faults import process_start
from tests.faults.external_programs import Daemon, RedisDaemon
from tests.faults.load import Load, Shape
from tests.faults.network_block import BLOCK, STALL
from tests.faults.observer_process import Watching
from tests.faults.points import LAYOUT
from tests.faults.program import Program
from tests.faults.tcp_proxy import Cable
from tests.support.cluster_driver import GPU, Object, Stage, administrator, gates, pause

PATIENCE = 90.0
QUIET_SECONDS = 1.5
SMALL = ClusterOptions(nodes=4, gpus=8, fairgate=False)
GPUS = 32


class Rig:
    """A cluster with the chart installed but without its own Fairgate processes."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.programs: list[Program] = []
        self.loads: list[Load] = []
        self.times: dict[str, float] = {}
        self.report: dict[str, Any] | None = None
        self.observer: Watching | None = None
        self._numbers = iter(range(1, 10_000))
        self._control_plane = ControlPlane.load(cluster.folder, cluster.processes)
        if any(child.name == "redis" for child in cluster.processes.alive()):
            url = cluster.details().redis
        else:  # the given cluster is shared and must not be broken
            url = start_redis(cluster.folder, cluster.processes, durable=False)
        self.redis_server = RedisDaemon(cluster, "redis", url)
        self.etcd = Daemon(cluster, "etcd")
        self.api_server = Daemon(cluster, "kube-apiserver")
        self.scheduler = Daemon(cluster, "kube-scheduler")
        self.controller_manager = Daemon(cluster, "kube-controller-manager")
        self.kwok = Daemon(cluster, "kwok")
        cluster.install()
        installation = cluster.fairgate().installation()
        assert installation is not None
        self._installation = installation
        self.front = Cable("127.0.0.1", 1, at=installation.webhook_port)
        """Between the API server and all webhooks, which it calls in turn."""
        self.routes = True
        """Whether a webhook that is started is put behind the front; else the test does that."""
        self.front.__enter__()
        self.stage = Stage(cluster, folder=folder)

    def begin(self, folder: Path) -> None:
        """Start a new test with an observer, a ready webhook and an otherwise empty cluster."""
        self.folder, self.stage = folder, Stage(self.cluster, folder=folder)
        self.times, self.report, self.loads = {}, None, []
        self.observe()
        if not self.of("webhook"):
            self.start("webhook")

    def observe(self, *flags: str) -> None:
        """Replace the observer by a new one."""
        if self.observer is not None:
            self.observer.verdict()
        number = next(self._numbers)
        report = self.folder / f"verdict-{number}.json"
        exempt = ",".join((*self._installation.exempt, CANARY))
        flags = ("--exempt", exempt, *flags)
        self.observer = Watching(self.cluster, f"observer-{number}", report, self.redis_url, *flags)

    def start(
        self,
        role: str,
        *,
        wait: bool = True,
        crash_at: str | None = None,
        stop_at: str | None = None,
        clock: bool = False,
        layout: str | None = None,
        block: str | None = None,
        stall: float | None = None,
        **settings: object,
    ) -> Program:
        """Start a process of a role. If not `wait`, return before it is ready.

        `crash_at` and `stop_at`: a point of `points.POINTS`, with an optional `:N`. `clock`: its
        wall clock follows `set_clock`. `layout`: it writes Redis in this layout, like another
        version. `block` and `stall`: see `tests.faults.network_block`. `settings`: settings of
        Fairgate by name.
        """
        to = {"api": self._control_plane.plan.server, "redis": self.redis_url}
        breaks = {"FAIRGATE_CRASH_AT": crash_at, "FAIRGATE_STOP_AT": stop_at}
        breaks |= {LAYOUT: layout, BLOCK: block, STALL: None if stall is None else str(stall)}
        number = next(self._numbers)
        program = process_start.start(self.cluster, role, number, to, breaks, clock, settings)
        self.programs.append(program)
        if role == "webhook" and self.routes:
            self.front.route(*(("127.0.0.1", each.listens) for each in self.of("webhook")))
        if wait:
            self.await_ready(program)
        return program

    def await_ready(self, program: Program) -> None:
        """Return when a program is ready and, if it is a webhook, pods are held."""
        conditions = {program.name: program.ready}
        with self.admin() as api:
            if program.role == "webhook":
                managed, exempt = self._installation.managed, self._installation.exempt
                conditions["its CA in the webhook's configuration"] = lambda: has_ca(api)
                conditions["policies that deny"] = lambda: is_enforcing(api)
                conditions["a held pod"] = lambda: is_pod_held(api, managed, exempt)
            wait_until(
                conditions,
                seconds=PATIENCE,
                check=lambda: self.cluster.processes.check([program.process]),
            )

    def of(self, role: str) -> list[Program]:
        """Return the living programs of a role."""
        return [each for each in self.programs if each.role == role and each.alive]

    def leader(self, *, other_than: Program | None = None, seconds: float = PATIENCE) -> Program:
        """Wait for a leader and return it."""
        found: list[Program] = []

        def leads() -> bool:
            found[:] = [
                each
                for each in self.of("controller")
                if each is not other_than and each.metric("fairgate_leader") == 1
            ]
            return len(found) > 0

        self.until("somebody leads", leads, seconds)
        return max(found, key=lambda each: each.metric("fairgate_leader_epoch") or 0)

    def until(self, what: str, true: Callable[[], bool], seconds: float = PATIENCE) -> float:
        """Wait for a condition and return the seconds it took. A failed query counts as false."""
        began = time.monotonic()
        why = ""
        while True:
            try:
                if true():
                    return time.monotonic() - began
                why = ""
            except (FairgateError, OSError, RedisError) as error:
                why = f" ({error})"
            if time.monotonic() - began > seconds:
                logs = "\n".join(f"{p.name}: {last_lines(p.log)}" for p in self.programs[-4:])
                raise AssertionError(f"not within {seconds:.0f} s: {what}{why}\n{logs}")
            pause(began)

    def took(self, what: str, seconds: float) -> None:
        """Record a time that is printed with the test."""
        self.times[what] = round(seconds, 2)

    def load(self, **shape: Any) -> Load:
        """Start creating pods in the background; see `load.Shape`."""
        wanted = Shape(**shape)
        apis = {namespace: self._person(namespace) for namespace in wanted.namespaces}
        load = Load(f"w{next(self._numbers)}", wanted, apis)
        self.loads.append(load)
        return load

    def admin(self) -> AbstractContextManager[SetupClient]:
        """Return an administrator's direct connection to the API server; use with `with`."""
        return administrator(self.cluster)

    def used(self, namespace: str = "") -> int:
        """Return the GPUs of released, unfinished pods, in one namespace or in all."""
        return sum(
            int(c["resources"].get("limits", {}).get(GPU, 0))
            for p in self.pods()
            if not gates(p)
            and p["status"]["phase"] not in ("Succeeded", "Failed")
            and namespace in ("", p["metadata"]["namespace"])
            for c in p["spec"]["containers"]
        )

    def pods(self) -> list[Object]:
        """Return every pod of the cluster that is not exempt."""
        exempt = {*self._installation.exempt, CANARY}
        with self.admin() as api:
            items = api.call("GET", "/api/v1/pods")["items"]
        return [item for item in items if item["metadata"]["namespace"] not in exempt]

    @property
    def redis_url(self) -> str:
        """The URL of Redis itself, without a proxy."""
        return self.redis_server.url

    def heal(self) -> None:
        """Undo every fault: resume programs, repair proxies, start one process per needed role."""
        self._mend()
        self.until("the API server is ready", self.api_ready)
        for role in ("webhook", "controller"):
            if not self.of(role):
                self.start(role)
            for program in self.of(role):
                self.await_ready(program)

    def _mend(self) -> None:
        self.front.mend()
        needed = (self.etcd, self.api_server, self.redis_server)
        for daemon in (*needed, self.scheduler, self.controller_manager, self.kwok):
            daemon.cont()
            daemon.start()
        for program in self.programs:
            program.api.mend()
            program.redis.mend()
            program.cont()

    def api_ready(self) -> bool:
        """Return whether the API server reports itself ready."""
        with self.admin() as api:
            return api.call("GET", "/readyz") is None

    def settle(self) -> None:
        """Stop all load, repair all faults, and wait until pods stop changing."""
        for load in self.loads:
            load.stop()
        self.heal()
        self.leader()
        last: list[object] = [None, time.monotonic()]

        def is_quiet() -> bool:
            pods = self.pods()
            now = sorted((p["metadata"]["uid"], p["metadata"]["resourceVersion"]) for p in pods)
            if now != last[0]:
                last[:] = [now, time.monotonic()]
            busy = any(
                "deletionTimestamp" in p["metadata"]
                or (not gates(p) and p["status"].get("phase") == "Running" and _ends(p))
                for p in pods
            )
            return not busy and time.monotonic() - float(str(last[1])) > QUIET_SECONDS

        self.until("the cluster is quiet", is_quiet, 2 * PATIENCE)

    def verdict(self) -> dict[str, Any]:
        """Settle and return the observer's report. Raises AssertionError with all violations."""
        if self.report is not None:
            return self.report
        self.settle()
        assert self.observer is not None, "a test begins with an observer"
        self.report, self.observer = self.observer.verdict(), None
        (self.folder / "took.json").write_text(json.dumps(self.times))
        violations = self.report["violations"]
        assert not violations, "\n".join(
            f"{each['invariant']} at {each.get('at')}: {each['what']}" for each in violations
        )
        return self.report

    def clear(self) -> None:
        """End the controllers, and remove the pods of the test, tenants, pools and policies."""
        self._mend()  # a failed test leaves its fault
        for load in self.loads:
            load.stop()
        if self.observer is not None:
            self.observer.verdict()
            self.observer = None
        others = self.of("controller") + self.of("api")
        for program in others:
            program.cont()
            program.send(signal.SIGTERM)  # graceful, so that the lease is free at once
        for program in others:
            program.kill(signal.SIGTERM)
        with self.admin() as api:
            self._empty(api)
            for plural in KINDS:
                api.call("DELETE", f"/apis/fairgate.io/v1alpha1/{plural}")
        self.stage.delete_objects()
        self._forget(lambda program: not program.alive)

    def _empty(self, api: SetupClient) -> None:
        """Delete all workloads in the test's namespaces, and wait until they are gone."""
        kinds = (
            "apis/apps/v1/%s/deployments",
            "apis/apps/v1/%s/statefulsets",
            "apis/batch/v1/%s/jobs",
            "api/v1/%s/pods",
        )
        paths = [
            f"/{kind % f'namespaces/{name}'}?gracePeriodSeconds=0&propagationPolicy=Background"
            for kind in kinds
            for name in self.stage.namespaces
        ]

        def is_empty() -> bool:
            for path in paths:
                api.call("DELETE", path)
            return not self.pods()

        self.until("nothing of the test is left", is_empty)

    def close(self) -> None:
        """Stop the load, all Fairgate processes and the proxies; the caller ends the cluster."""
        for load in self.loads:
            load.stop()
        self.end_programs()
        self.front.__exit__()

    def end_programs(self) -> None:
        """End all Fairgate processes, also the webhooks, which outlive a test."""
        for program in self.programs:
            program.kill()
        self._forget(lambda program: True)

    def _forget(self, gone: Callable[[Program], bool]) -> None:
        for program in [each for each in self.programs if gone(each)]:
            self.programs.remove(program)
            program.api.__exit__()
            program.redis.__exit__()

    def _person(self, namespace: str) -> SetupClient:
        """Create a namespace and a user that may create pods there; return its connection."""
        plan, person = self._control_plane.plan, f"user-of-{namespace}"
        pem = plan.certificates
        if namespace not in self.stage.namespaces:
            self.stage.namespace(namespace)
        if not pem.certificate(person).exists():
            pem.create_person(person, [])
            binding = ("create", "rolebinding", "load", "--clusterrole=edit", f"--user={person}")
            self.cluster.kubectl(*binding, "-n", namespace)
        return SetupClient(
            plan.server, pem.certificate("cluster-ca"), pem.certificate(person), pem.key(person)
        )


@contextmanager
def open_rig(cluster: LocalCluster, folder: Path, options: ClusterOptions = SMALL) -> Iterator[Rig]:
    """Start a cluster for a `Rig`, and end both."""
    try:
        cluster.up(options)
        rig = Rig(cluster, folder)
        try:
            yield rig
        finally:
            rig.close()
    finally:
        cluster.down()


def _ends(item: Object) -> bool:
    return "kwok.fairgate.dev/runtime" in item["metadata"].get("annotations", {})
