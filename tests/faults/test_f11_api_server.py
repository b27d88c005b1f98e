"""F11: the API server and etcd die, stop, or lose history; a watch goes silent."""

from __future__ import annotations

import base64
import time

from app.devcluster.api_client import SetupClient
from app.devcluster.component_flags import HOST
from app.devcluster.control_plane import ControlPlane
from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.waiting_pods import FITTING, Crowd

ROOM = 4
STOPPED_SECONDS = 30.0
STALE = "source is stale"


def test_f11_a_killed_api_server_or_etcd_costs_a_pause(rig: Rig) -> None:
    leader = rig.start("controller")
    crowd = Crowd(rig, "f11-killed")
    crowd.until_full()
    for name, daemon in (("API server", rig.api_server), ("etcd", rig.etcd)):
        daemon.kill()
        rig.until("it stops leading", lambda: not leads(leader))
        daemon.start()
        back = rig.until("the API server is back", lambda: len(crowd.held()) > 0)
        before = crowd.held()
        crowd.leave(ROOM)
        resumed = rig.until("it resumes", lambda: crowd.held() < before)  # noqa: B023
        crowd.until_full()
        rig.took(f"{name}: started again", back)
        rig.took(f"{name}: resumed after that", resumed)


def test_f11_late_commits_of_a_stopped_api_server_are_counted(rig: Rig) -> None:
    leader = rig.start("controller", release_concurrency=4, lease_seconds=15)
    leader.api.delay(0.1)
    crowd = Crowd(rig, "f11-stopped")
    rig.until("the first are released", lambda: len(crowd.stamps()) > 1)
    rig.api_server.stop()
    began = time.monotonic()
    heard = leader.metric("fairgate_release_total", 'result="released"') or 0
    rig.until(
        "it stood still, and the leader gave up",
        lambda: time.monotonic() - began > STOPPED_SECONDS and not leads(leader),
    )
    rig.api_server.cont()
    leader.api.mend()
    rig.took("full after it goes on", crowd.until_full())
    rig.took("releases heard of before (pods)", heard)
    assert len(crowd.stamps()) == FITTING


def test_f11_a_history_that_was_compacted_is_listed_again(rig: Rig) -> None:
    leader = rig.start("controller", lease_seconds=60)  # it keeps leading: no other relist
    crowd = Crowd(rig, "f11-compacted")
    crowd.until_full()
    known = len(leader.lines(STALE))
    leader.api.cut()
    crowd.leave(ROOM)
    crowd.join(8, prefix="q")
    forget(rig)
    rig.api_server.kill()  # its watch cache is lost too
    rig.api_server.start()
    rig.until("the API server is back", lambda: len(crowd.held()) > 0)
    leader.api.mend()
    healed = time.monotonic()
    rig.until("it doubts what it knows", lambda: len(leader.lines(STALE)) > known)
    crowd.until_full()
    rig.took("full after healing", time.monotonic() - healed)
    gone = sum("410" in line["facts"]["why"] for line in leader.lines(STALE)[known:])
    rig.took("sources that were told 410 (the others were silent for too long)", gone)


def test_f11_a_watch_that_is_dead_without_a_sign_is_noticed(rig: Rig) -> None:
    leader = rig.start("controller", lease_seconds=15)
    crowd = Crowd(rig, "f11-half-open")
    crowd.until_full()
    leader.api.strand()
    crowd.leave(ROOM)
    crowd.join(8, prefix="q")
    rig.took("noticed and full", crowd.until_full())


def leads(program: Program) -> bool:
    return program.metric("fairgate_leader") != 0


def forget(rig: Rig) -> None:
    """Compact the entire history of etcd."""
    plan = ControlPlane.load(rig.cluster.folder, rig.cluster.processes).plan
    pem = plan.certificates
    with SetupClient(
        f"https://{HOST}:{plan.ports.etcd}",
        pem.certificate("etcd-ca"),
        pem.certificate("etcd-client"),
        pem.key("etcd-client"),
    ) as etcd:
        found = etcd.call("POST", "/v3/kv/range", {"key": base64.b64encode(b"x").decode()})
        revision = int(found["header"]["revision"])
        etcd.call("POST", "/v3/kv/compaction", {"revision": revision, "physical": True})
