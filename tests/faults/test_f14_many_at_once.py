"""F14: many pods finish at once, or are deleted while held, or by force."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import GPU, NodeGroup
from tests.faults.conftest import judged
from tests.faults.fault_cluster import Rig, open_rig
from tests.faults.rush import create, finish
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


@pytest.fixture(scope="module")
def big_rig(cluster_tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    options = ClusterOptions(groups=(BIG,), fairgate=False)
    with open_rig(
        LocalCluster(folders.own_folder("big-rig")), tmp_path_factory.mktemp("big"), options
    ) as rig:
        yield rig


@pytest.fixture
def big(
    big_rig: Rig,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Rig]:
    """Four nodes that together fit `MANY` pods of one GPU."""
    yield from judged(big_rig, request, tmp_path, record_property)


def test_f14_a_namespace_with_a_thousand_held_pods_is_deleted(big: Rig) -> None:
    big.start("controller", lease_seconds=LEASE_SECONDS)
    big.leader()
    big.stage.tenant("f14-none", "1", "f14-held", paused=True)
    namespace = big.stage.namespace("f14-held")
    work(big, namespace, "held", HELD)
    took = big.until("all are held", lambda: waiting(big) == HELD, LONG)
    big.took(f"{HELD} pods are held", took)
    big.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    big.stage.namespaces.remove(namespace)
    took = big.until("Redis has forgotten them", lambda: waiting(big) == 0, LONG)
    big.took("their queue is empty", took)
    assert used(big) == 0


def test_f14_force_deletes_give_back_what_was_used(big: Rig) -> None:
    big.start("controller", lease_seconds=LEASE_SECONDS)
    big.leader()
    namespace = big.stage.namespace("f14-force")
    work(big, namespace, "forced", 80, gpus=25)
    full = MANY // 25
    big.until("the pool is full", lambda: len(of(big, running)) == full)
    for _ in range(2):
        names = [p["metadata"]["name"] for p in of(big, running)]
        big.stage.delete(namespace, *names)
        anew = lambda gone=names: runs_anew(big, gone, full)  # noqa: E731
        big.until("others run", glance(anew))
    big.until("usage is exact", lambda: used(big) == full * 25)


def test_f14_many_finish_at_once_and_are_never_queued_again(big: Rig) -> None:
    first = big.start("controller", lease_seconds=LEASE_SECONDS)
    big.leader()
    namespace = big.stage.namespace("f14-finish")
    work(big, namespace, "first", MANY)
    took = big.until("all run", glance(lambda: len(of(big, running)) == MANY), LONG)
    big.took(f"{MANY} pods run", took)
    work(big, namespace, "second", 50)
    big.until("more are held", lambda: waiting(big) == 50)
    finished = of(big, running)
    big.took(f"{MANY} pods were finished", finish(big, finished))
    took = big.until("the others run", glance(lambda: len(of(big, running)) == 50))
    big.took("who was held runs", took)
    big.until("usage is exact", lambda: used(big) == 50 and waiting(big) == 0)

    first.kill()
    big.start("controller", lease_seconds=LEASE_SECONDS)
    big.leader()
    big.until("Redis is rebuilt", lambda: waiting(big) == 0 and used(big) == 50)
    over = [p for p in big.pods() if p["metadata"]["uid"] in uids(finished)]
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
