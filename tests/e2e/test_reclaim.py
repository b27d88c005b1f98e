"""Reclaim of borrowed capacity: the cases R1 to R6, and pods that must not be evicted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.devcluster import state_dir as folders
from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import NodeGroup
from app.kube.reclaim_notices import CONDITION
from tests.support.cluster_driver import GPU, Object, Stage, name_of, pod, stamp, until
from tests.support.reclaim_teams import NINE, SEVEN, policy, team, told

KIND = "example.com/kind"
WAIT = "example.com/wait"


@pytest.fixture(scope="module")
def grown(cluster_tools: Tools) -> Iterator[LocalCluster]:
    """A cluster of two pools: one node of 9 GPUs, one node of 7."""
    groups = tuple(
        NodeGroup(name, 1, {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(count)},
                  {KIND: name})
        for name, count in ((NINE, 9), (SEVEN, 7))
    )  # fmt: skip
    cluster = LocalCluster(folders.own_folder("reclaim"))
    try:
        cluster.up(ClusterOptions(groups=groups, fairgate=False))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        stage = Stage(cluster)
        kind = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Pool"}
        for name in (NINE, SEVEN):
            spec = {"nodeSelector": {KIND: name}}
            stage.apply("default", {**kind, "metadata": {"name": name}, "spec": spec})
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def stage(grown: LocalCluster, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(grown, folder=tmp_path)
    try:
        yield stage
    finally:
        for namespace in stage.namespaces:
            let_go(stage, namespace, *(name_of(p) for p in stage.pods(namespace)))
        stage.clear()


def work(
    name: str, gpus: int = 1, pool: str = NINE, *, priority: str = "", **annotations: str
) -> Object:
    """Return a pod for one pool, with these Fairgate annotations."""
    item = pod(name, gpus, priority=priority)
    item["metadata"]["labels"] = {"name": name}
    item["metadata"]["annotations"] = {
        "fairgate.io/pools": pool,
        **{f"fairgate.io/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    return item


def start(stage: Stage, namespace: str, *items: Object) -> None:
    """Create pods one after another, and wait until each one runs."""
    for name, item in ((name_of(item), item) for item in items):
        stage.apply(namespace, item)
        until(f"{name} runs", lambda n=name: n in stage.running(namespace))  # type: ignore[misc]


def ones(prefix: str, count: int, first: int = 0, pool: str = NINE) -> list[Object]:
    return [work(f"{prefix}-{number}", 1, pool) for number in range(first, first + count)]


def names(stage: Stage, namespace: str) -> set[str]:
    return {name_of(item) for item in stage.pods(namespace)}


def reclaimed(stage: Stage) -> float:
    return stage.metric("controller", "fairgate_reclaimed_total")


def nobody_goes(stage: Stage, pool: str, held: tuple[str, str], before: float) -> None:
    """Check that a pod was examined in many scheduling cycles without any eviction.

    Later pods for another pool run, so the leader has evaluated the first pod again.
    """
    namespace, name = held
    until(
        "it is seen", lambda: any(m.startswith(f"{name}: ") for m in told(stage, namespace, "Held"))
    )
    other = stage.namespace(f"{namespace}-later")
    for number in range(3):
        start(stage, other, work(f"later-{number}", 1, SEVEN if pool == NINE else NINE))
    assert name in stage.held(namespace)
    assert reclaimed(stage) == before


def let_go(stage: Stage, namespace: str, *pods: str) -> None:
    """Remove the finalizers of pods, so that terminating pods disappear."""
    for name in pods:
        patch = '{"metadata":{"finalizers":null}}'
        stage.cluster.kubectl("patch", "pod", name, "-n", namespace, "--type=merge", "-p", patch)


def leaving(stage: Stage, namespace: str) -> set[str]:
    found = stage.pods(namespace)
    return {name_of(p) for p in found if "deletionTimestamp" in p["metadata"]}


def budget(stage: Stage, namespace: str, least: int, *pods: str) -> None:
    """Create a budget with this `minAvailable` for these pods; wait until its status is set."""
    match = [{"key": "name", "operator": "In", "values": list(pods)}]
    spec = {"minAvailable": least, "selector": {"matchExpressions": match}}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    stage.apply(namespace, {**kind, "metadata": {"name": "keep"}, "spec": spec})

    def known() -> bool:
        status = stage.get("pdb", "keep", "-n", namespace).get("status", {})
        return status.get("currentHealthy") == len(pods)  # type: ignore[no-any-return]

    until("the budget is known", known)


def test_r1_guarantee_is_reclaimed_by_evicting_one_borrowing_pod(stage: Stage) -> None:
    policy(stage)
    a, b, c = (team(stage, f"r1{each}", 3) for each in "abc")
    start(stage, a, *ones("a", 3))
    start(stage, b, *ones("b", 5))
    start(stage, c, *ones("c", 1))
    before = reclaimed(stage)
    stage.apply(c, work("secret-name"))
    until("it runs", lambda: "secret-name" in stage.running(c))
    assert names(stage, b) == {"b-0", "b-1", "b-2", "b-3"}  # the pod released last
    assert names(stage, a) == {"a-0", "a-1", "a-2"}
    assert reclaimed(stage) == before + 1
    until("its owner is told", lambda: bool(told(stage, b, "Reclaimed")))
    [message] = told(stage, b, "Reclaimed")
    assert message.startswith(
        "b-4: makes room for work of tenant r1c in pool nine: it reclaims its guarantee"
    )
    assert 'fairgate.io/preemptible: "false"' in message
    assert "secret-name" not in message


def test_r2_borrowed_capacity_is_balanced_only_with_reclaim_fair(stage: Stage) -> None:
    policy(stage, reclaim="guarantee")
    a, b, c = (team(stage, f"r2{each}", 3) for each in "abc")
    start(stage, a, *ones("a", 3))
    start(stage, b, *ones("b", 5))
    start(stage, c, *ones("c", 1))
    before = reclaimed(stage)
    stage.apply(a, work("more"))
    nobody_goes(stage, NINE, (a, "more"), before)
    policy(stage, reclaim="fair")
    until("it runs", lambda: "more" in stage.running(a))
    assert len(stage.running(b)) == 4
    until("its owner is told", lambda: bool(told(stage, b, "Reclaimed")))
    assert "borrows less than the tenant of this" in told(stage, b, "Reclaimed")[0]


def test_r3_an_imbalance_is_not_swapped(stage: Stage) -> None:
    policy(stage, reclaim="fair")
    a, b = (team(stage, f"r3{each}", 3) for each in "ab")
    start(stage, a, *ones("a", 3))
    start(stage, b, *ones("b", 5))
    before = reclaimed(stage)
    stage.apply(a, work("two", 2))
    nobody_goes(stage, NINE, (a, "two"), before)


def test_r4_pod_that_is_partly_within_the_guarantee_is_evicted(stage: Stage) -> None:
    policy(stage)
    a, b = (team(stage, f"r4{each}", 3) for each in "ab")
    start(stage, b, work("all", 9))
    stage.apply(a, work("two", 2))
    until("it runs", lambda: stage.running(a) == ["two"])
    assert not names(stage, b)


def test_r5_the_taker_must_not_end_higher(stage: Stage) -> None:
    policy(stage, reclaim="fair")
    a, b = (team(stage, f"r5{each}", 0) for each in "ab")
    start(stage, a, *ones("a", 2))
    start(stage, b, work("seven", 7))
    before = reclaimed(stage)
    stage.apply(a, work("five", 5))
    nobody_goes(stage, NINE, (a, "five"), before)


@pytest.mark.parametrize("within", ["Never", "LowerPriority"])
def test_r6_lower_priority_pod_is_evicted_only_if_within_queue_allows(
    stage: Stage, within: str
) -> None:
    policy(stage, withinQueue=within)
    mark = within[0].lower()
    a, c = team(stage, f"r6a-{mark}", 4, SEVEN), team(stage, f"r6c-{mark}", 2, SEVEN)
    team(stage, f"r6b-{mark}", 1, SEVEN)
    high = stage.priority_class("r6-high", 1)
    start(stage, a, work("a0", 3, SEVEN))
    start(stage, c, work("c1", 4, SEVEN, priority=high))
    before = reclaimed(stage)
    stage.apply(a, work("x", 4, SEVEN, priority=high))
    if within == "Never":
        nobody_goes(stage, SEVEN, (a, "x"), before)
        return
    until("it runs", lambda: stage.running(a) == ["x"])
    assert not names(stage, c)
    assert reclaimed(stage) == before + 2
    until("its owner is told", lambda: bool(told(stage, a, "Reclaimed")))
    [message] = told(stage, a, "Reclaimed")
    assert "higher priority" in message


def test_no_pod_is_evicted_if_reclaim_is_off_or_min_runtime_not_reached(stage: Stage) -> None:
    policy(stage, reclaim="off")
    a, b = team(stage, "offa", 4), team(stage, "offb", 0)
    start(stage, b, *ones("b", 9))
    before = reclaimed(stage)
    stage.apply(a, work("mine", 2))
    nobody_goes(stage, NINE, (a, "mine"), before)
    policy(stage, minRuntime="1h")
    stage.apply(a, work("next", 2))
    until("both wait", lambda: stage.get("tenant", "offa")["status"].get("pending") == 2)
    assert reclaimed(stage) == before
    policy(stage)
    until("both run", lambda: sorted(stage.running(a)) == ["mine", "next"])
    assert reclaimed(stage) == before + 4


def test_lowest_qos_class_is_evicted_first_and_non_preemptible_never(stage: Stage) -> None:
    policy(stage)
    a, b = team(stage, "qosa", 6), team(stage, "qosb", 2)
    kept = work("kept", 2, preemptible="false")  # within the guarantee
    least, most = work("least", 3), work("most", 4)
    del least["spec"]["containers"][0]["resources"]["requests"]
    same = {"cpu": "1", "memory": "1Gi"}
    resources = most["spec"]["containers"][0]["resources"]
    resources["requests"], resources["limits"] = same, {**same, GPU: 4}
    start(stage, b, kept, least, most)
    quality = {name_of(p): p["status"]["qosClass"] for p in stage.pods(b)}
    assert quality == {"kept": "Burstable", "least": "BestEffort", "most": "Guaranteed"}
    stage.apply(b, work("never", 1, preemptible="false"))  # it would borrow, so it does not start
    stage.apply(a, work("three", 3))
    until("the first goes", lambda: stage.running(a) == ["three"])
    assert names(stage, b) == {"kept", "most", "never"}
    stage.apply(a, work("again", 3))
    until("then the second", lambda: len(stage.running(a)) == 2)
    until("what must stay is left", lambda: stage.running(b) == ["kept"])
    assert stage.held(b) == ["never"]


def test_reclaim_evicts_pods_that_no_disruption_budget_protects(stage: Stage) -> None:
    policy(stage)
    a, b = team(stage, "pdba", 4), team(stage, "pdbb", 0)
    start(stage, b, *ones("b", 9))
    guarded = [f"b-{number}" for number in range(1, 9)]
    budget(stage, b, len(guarded), *guarded)
    stage.apply(a, work("first"))
    until("it runs", lambda: stage.running(a) == ["first"])
    assert names(stage, b) == set(guarded)
    stage.apply(a, work("second"))
    until("it is said why not", lambda: bool(put_off(stage, a)))
    assert "cannot be evicted now: a disruption budget" in put_off(stage, a)[0]
    assert "b-" not in put_off(stage, a)[0]
    assert names(stage, b) == set(guarded)
    assert stage.held(a) == ["second"]
    stage.cluster.kubectl("delete", "pdb", "keep", "-n", b)
    until("it is tried again", lambda: len(stage.running(a)) == 2, 150)
    assert len(names(stage, b)) == 7


def put_off(stage: Stage, namespace: str) -> list[str]:
    return [m for m in told(stage, namespace, "Waiting") if "cannot be evicted" in m]


def test_gang_is_evicted_completely_or_not_at_all(stage: Stage) -> None:
    policy(stage)
    a, b = team(stage, "ganga", 3), team(stage, "gangb", 0)
    gang = [work(f"m-{n}", 3, gang="train", gang_size="3") for n in range(3)]
    stage.apply(b, *gang)
    until("the gang runs", lambda: len(stage.running(b)) == 3)
    budget(stage, b, 1, "m-0", "m-1", "m-2")  # each of the two may go, but not all three together
    before = reclaimed(stage)
    stage.apply(a, work("one"))
    until("it is said why not", lambda: bool(put_off(stage, a)))
    assert len(stage.running(b)) == 3
    assert reclaimed(stage) == before
    stage.cluster.kubectl("delete", "pdb", "keep", "-n", b)
    until("it runs", lambda: stage.running(a) == ["one"], 150)
    until("all of the gang is gone", lambda: not names(stage, b))
    until("all of it is counted", lambda: reclaimed(stage) == before + 3)


def test_pods_that_join_a_gang_later_are_evicted_without_its_protected_pods(stage: Stage) -> None:
    policy(stage)
    a, b = team(stage, "growa", 4), team(stage, "growb", 2)
    first = work("k-0", gang="train", gang_size="2", preemptible="false")
    stage.apply(b, first, work("k-1", gang="train", gang_size="2"))
    until("both run", lambda: len(stage.running(b)) == 2)
    kept = [item["metadata"]["annotations"]["fairgate.io/preemptible"] for item in stage.pods(b)]
    assert kept == ["false", "false"]
    start(stage, b, *(work(f"j-{n}", gang="train", gang_size=str(n + 3)) for n in range(7)))
    stage.apply(a, work("four", 4))
    until("it runs", lambda: stage.running(a) == ["four"], 150)
    until("those that joined are gone", lambda: names(stage, b) == {"k-0", "k-1"})


def test_reclaimed_capacity_stays_reserved_after_a_leader_change(stage: Stage) -> None:
    policy(stage)
    a, b, d = team(stage, "kepta", 4), team(stage, "keptb", 0), team(stage, "keptd", 0)
    slow = ones("b", 9)
    for item in slow:
        item["metadata"]["finalizers"] = [WAIT]
    start(stage, b, *slow)
    stage.apply(a, work("four", 4))
    until("four are evicted", lambda: len(leaving(stage, b)) == 4)
    stage.cluster.stop_fairgate("controller")
    stage.cluster.start_fairgate("controller")
    stage.apply(d, *ones("d", 2))
    until("another leads", lambda: stage.get("tenant", "keptd")["status"].get("pending") == 2)
    first, *rest = sorted(leaving(stage, b))
    let_go(stage, b, first)
    until("one is gone", lambda: first not in names(stage, b))
    nobody_goes(stage, NINE, (a, "four"), 0)  # the new leader's process counts from zero
    assert len(stage.held(d)) == 2
    let_go(stage, b, *rest)
    until("it runs", lambda: stage.running(a) == ["four"])
    assert len(stage.running(b)) == 5
    assert len(stage.held(d)) == 2


def test_the_reverse_of_a_reclaim_is_refused_and_reported(stage: Stage) -> None:
    policy(stage, reclaim="fair")
    a, b = team(stage, "loopa", 4), team(stage, "loopb", 0)
    start(stage, b, *ones("b", 9))
    stage.apply(a, *ones("a", 4))
    until("a has what it is guaranteed", lambda: len(stage.running(a)) == 4)
    stage.delete(b, *names(stage, b))
    stage.apply(a, *ones("a", 5, 4))
    until("a borrows the rest", lambda: len(stage.running(a)) == 9)
    before = reclaimed(stage)
    loops = stage.metric("controller", "fairgate_reclaim_loops_refused_total")
    stage.apply(b, work("back"))
    until(
        "it is told",
        lambda: any("was evicted there for that tenant" in m for m in told(stage, b, "Waiting")),
    )
    assert reclaimed(stage) == before
    assert stage.metric("controller", "fairgate_reclaim_loops_refused_total") == loops + 1
    stage.cluster.stop_fairgate("controller")
    stage.cluster.start_fairgate("controller")
    until("another leads", lambda: stage.metric("controller", "fairgate_leader") == 1)
    stage.apply(b, work("too"))
    until("it is seen", lambda: any(m.startswith("too: ") for m in told(stage, b, "Held")))
    reported = lambda: stage.metric("controller", "fairgate_reclaim_loops_refused_total")  # noqa: E731
    until("the next leader remembers", lambda: reported() >= 1)
    assert len(stage.running(a)) == 9
    assert sorted(stage.held(b)) == ["back", "too"]
    assert all(stamp(p) for p in stage.pods(a))


def test_a_pod_gets_its_notice_which_a_new_leader_continues(stage: Stage) -> None:
    policy(stage)
    a, b = (team(stage, f"notice{each}", guarantee) for each, guarantee in (("a", 4), ("b", 0)))
    start(stage, b, work("keeps", 8), work("saves", 1, reclaim_notice="10s"))
    stage.apply(a, work("needs"))
    until("the pod carries the notice", lambda: notice_of(stage, b, "saves") is not None)
    ends = notice_of(stage, b, "saves")
    assert ends is not None
    [condition] = [
        c
        for c in stage.get("pod", "saves", "-n", b)["status"]["conditions"]
        if c["type"] == CONDITION
    ]
    assert (condition["status"], condition["reason"]) == ("True", "Reclaim")
    assert "makes room for work of noticea" in condition["message"]
    until("its owner is told", lambda: bool(told(stage, b, "ReclaimNotice")))

    stage.cluster.restart("fairgate-controller", signal.SIGKILL)

    until("it is gone", lambda: "saves" not in names(stage, b))
    assert datetime.now(UTC) >= ends
    until("the other runs", lambda: "needs" in stage.running(a))
    assert names(stage, b) == {"keeps"}
    assert stage.metric("controller", "fairgate_evicted_gpu_seconds_total") > 0


def notice_of(stage: Stage, namespace: str, name: str) -> datetime | None:
    """Return the end of a pod's notice; None if it has none."""
    metadata = stage.get("pod", name, "-n", namespace)["metadata"]
    ends = metadata["annotations"].get("fairgate.io/reclaim-at")
    return datetime.fromisoformat(ends) if ends else None
