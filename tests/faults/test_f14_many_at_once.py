"""F14: many pods finish at once, or are deleted while held, or by force."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from app.devcluster.nodes import GPU, NodeGroup, create_nodes, ready_nodes
from tests.faults.fault_cluster import SMALL, Rig
from tests.faults.many_pods import create, finish
from tests.support.cluster_driver import Object, pod

MANY = 500
"""Running pods. Ten times as many take many minutes on two cores, without a different result."""
HELD = 1000
BIG = NodeGroup("big", 4, {"cpu": "2000", "memory": "4Ti", "pods": "400", GPU: str(MANY // 4)})
LONG = 240.0
LEASE_SECONDS = 15
"""As in production. A short lease expires by itself on a machine under this load."""
GLANCE_SECONDS = 2.0
"""Seconds between lists of all pods, the most expensive requests for the API server."""


@pytest.fixture(scope="module", autouse=True)
def nodes(module_rig: Rig, add_nodes: Callable[[NodeGroup], None]) -> Iterator[None]:
    """Four nodes that together fit `MANY` pods of one GPU, in place of the usual nodes."""
    usual = SMALL.node_groups()[0]
    with module_rig.admin() as api:
        for name in usual.names():
            api.call("DELETE", f"/api/v1/nodes/{name}")
    add_nodes(BIG)
    yield
    with module_rig.admin() as api:
        create_nodes(api, usual)
        module_rig.until("the nodes are back", lambda: {*usual.names()} <= ready_nodes(api))


def test_f14_a_namespace_with_a_thousand_held_pods_is_deleted(rig: Rig) -> None:
    rig.start("controller", lease_seconds=LEASE_SECONDS)
    rig.leader()
    rig.stage.tenant("f14-none", "1", "f14-held", paused=True)
    namespace = rig.stage.namespace("f14-held")
    work(rig, namespace, "held", HELD)
    took = rig.until("all are held", lambda: waiting(rig) == HELD, LONG)
    rig.took(f"{HELD} pods are held", took)
    rig.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    rig.stage.namespaces.remove(namespace)
    took = rig.until("Redis has forgotten them", lambda: waiting(rig) == 0, LONG)
    rig.took("their queue is empty", took)
    assert used(rig) == 0


def test_f14_force_deleted_pods_free_their_capacity(rig: Rig) -> None:
    rig.start("controller", lease_seconds=LEASE_SECONDS)
    rig.leader()
    namespace = rig.stage.namespace("f14-force")
    work(rig, namespace, "forced", 80, gpus=25)
    full = MANY // 25
    rig.until("the pool is full", lambda: len(of(rig, running)) == full)
    for _ in range(2):
        names = [p["metadata"]["name"] for p in of(rig, running)]
        rig.stage.delete(namespace, *names)
        anew = lambda gone=names: runs_anew(rig, gone, full)  # noqa: E731
        rig.until("others run", glance(anew))
    rig.until("usage is exact", lambda: used(rig) == full * 25)


def test_f14_many_finish_at_once_and_are_never_queued_again(rig: Rig) -> None:
    first = rig.start("controller", lease_seconds=LEASE_SECONDS)
    rig.leader()
    namespace = rig.stage.namespace("f14-finish")
    work(rig, namespace, "first", MANY)
    took = rig.until("all run", glance(lambda: len(of(rig, running)) == MANY), LONG)
    rig.took(f"{MANY} pods run", took)
    work(rig, namespace, "second", 50)
    rig.until("more are held", lambda: waiting(rig) == 50)
    finished = of(rig, running)
    rig.took(f"{MANY} pods were finished", finish(rig, finished))
    took = rig.until("the others run", glance(lambda: len(of(rig, running)) == 50))
    rig.took("who was held runs", took)
    rig.until("usage is exact", lambda: used(rig) == 50 and waiting(rig) == 0)

    first.kill()
    rig.start("controller", lease_seconds=LEASE_SECONDS)
    rig.leader()
    rig.until("Redis is rebuilt", lambda: waiting(rig) == 0 and used(rig) == 50)
    over = [p for p in rig.pods() if p["metadata"]["uid"] in uids(finished)]
    assert [p["metadata"]["name"] for p in over if p["status"]["phase"] != "Succeeded"] == []


def work(rig: Rig, namespace: str, name: str, count: int, gpus: int = 1) -> float:
    """Create this number of pods; return the seconds it took."""
    return create(rig, namespace, [pod(f"{name}-{number}", gpus) for number in range(count)])


def glance(true: Callable[[], bool]) -> Callable[[], bool]:
    """Evaluate the condition only at intervals; in between it counts as false."""
    asked = [0.0]

    def is_true() -> bool:
        if time.monotonic() - asked[0] < GLANCE_SECONDS:
            return False
        answer = true()
        asked[0] = time.monotonic()
        return answer

    return is_true


def of(rig: Rig, kind: Callable[[Object], bool]) -> list[Object]:
    return [p for p in rig.pods() if "deletionTimestamp" not in p["metadata"] and kind(p)]


def running(item: Object) -> bool:
    return bool(item["status"].get("phase") == "Running")


def uids(pods: list[Object]) -> set[str]:
    return {p["metadata"]["uid"] for p in pods}


def runs_anew(rig: Rig, gone: list[str], count: int) -> bool:
    names = {p["metadata"]["name"] for p in of(rig, running)}
    return len(names) == count and not names & set(gone)


def used(rig: Rig) -> int:
    return total(rig, "used", lambda cell: cell.endswith(b"nvidia.com%2Fgpu"))


def waiting(rig: Rig) -> int:
    return total(rig, "waiting", lambda cell: True)


def total(rig: Rig, table: str, counts: Callable[[bytes], bool]) -> int:
    """Return the sum of a table of the complete state in Redis."""
    with rig.redis_server.client() as redis:
        generation = redis.hget("fairgate:{default}:state", "generation")
        if generation is None:
            return -1
        rows = redis.hgetall(f"fairgate:{{default}}:{generation.decode()}:{table}")
    return sum(int(value) for cell, value in rows.items() if counts(cell))
