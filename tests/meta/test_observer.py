"""The observer detects each broken invariant on a synthetic stream, and accepts a correct one."""

from __future__ import annotations

import ast
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.observer.amounts import amount, reserved
from tests.faults.observer.judge import Allowed, Judge, Release
from tests.faults.observer.objects import Managed
from tests.faults.observer.redis_copy import Copy, compare, recount
from tests.faults.observer.stream import Sighting
from tests.faults.observer.writers import WRITER, Write
from tests.faults.observer.writers import judge as judge_writers

GPU = "nvidia.com/gpu"
FOLDER = Path(__file__).parents[1] / "faults" / "observer"

Object = dict[str, Any]


class Stream:
    """The observations of an API server, one version per second."""

    def __init__(self, nodes: int = 1, **allowed: Any) -> None:
        self.judge = Judge(Managed([GPU]), frozenset({"kube-system"}), Allowed(**allowed))
        self.version = 0
        self._uids = count(1)
        for number in range(nodes):
            self.node(f"n{number}")

    def show(self, kind: str, item: Object, **more: Any) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        more.setdefault("version", self.version)
        more.setdefault("at", float(self.version))
        self.judge.take(Sighting(number=self.version, kind=kind, object=item, **more))

    def node(self, name: str, gpus: int = 8, ready: bool = True, **more: Any) -> None:
        conditions = [{"type": "Ready", "status": str(ready)}]
        offers = {GPU: str(gpus), "cpu": "64", "pods": "110"}
        status = {"allocatable": offers, "conditions": conditions}
        self.show("nodes", {"metadata": {"name": name, "uid": name}, "status": status}, **more)

    def tenant(self, name: str, limit: int | None = None, **spec: Any) -> None:
        if limit is not None:
            spec["quotas"] = [{"pool": "default", "limit": {GPU: limit}}]
        meta = {"name": name, "uid": name, "creationTimestamp": "2030-01-01T00:00:00Z"}
        self.show("tenants", {"metadata": meta, "spec": spec})

    def held(self, gpus: int = 1, namespace: str = "a", stamp: str = "0", **more: Any) -> Object:
        """Add a held pod."""
        uid = f"u{next(self._uids)}"
        item: Object = {
            "metadata": {
                "uid": uid,
                "name": uid,
                "namespace": namespace,
                "creationTimestamp": "2030-01-01T00:00:00Z",
                "annotations": {"fairgate.io/release": stamp, "fairgate.io/submitter": "alice"},
            },
            "spec": {
                "schedulingGates": [{"name": "fairgate.io/queue"}],
                "containers": [{"resources": {"limits": {GPU: str(gpus)}}}],
            },
            "status": {"phase": "Pending"},
        }
        self.show("pods", item, **more)
        return item

    def opened(self, item: Object, stamp: str, **more: Any) -> Object:
        """Remove its gate and set this stamp."""
        item = _copy(item)
        item["spec"].pop("schedulingGates", None)
        item["metadata"]["annotations"]["fairgate.io/release"] = stamp
        item["metadata"]["labels"] = {"fairgate.io/pool": "default"}
        self.show("pods", item, **more)
        return item

    def changed(self, item: Object, *, stamp: str = "", node: str = "", phase: str = "") -> Object:
        item = _copy(item)
        if stamp:
            item["metadata"]["annotations"]["fairgate.io/release"] = stamp
        if node:
            item["spec"]["nodeName"] = node
        if phase:
            item["status"]["phase"] = phase
        self.show("pods", item)
        return item

    def gone(self, item: Object) -> None:
        self.show("pods", _copy(item), gone=True)

    @property
    def found(self) -> list[str]:
        return [each.invariant for each in self.judge.violations]


def _copy(item: Object) -> Object:
    return {
        "metadata": item["metadata"]
        | {"annotations": dict(item["metadata"].get("annotations", {}))},
        "spec": dict(item["spec"]),
        "status": dict(item["status"]),
    }


def test_observer_shares_no_code_with_the_product() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    assert len(files) > 5
    for path in files:
        for line in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in line.names] if isinstance(line, ast.Import) else []
            names += [line.module or ""] if isinstance(line, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] != "app", f"{path.name} imports {name}"
                ours = name.startswith("tests")
                assert not ours or name.startswith("tests.faults."), f"{path.name}: {name}"


def test_a_right_stream_is_accepted() -> None:
    stream = Stream(nodes=2)
    stream.tenant("team", limit=6, namespaces=["a"])
    first, second = stream.held(4), stream.held(2)
    foreign = stream.held(8, namespace="b")
    first = stream.changed(stream.opened(first, "1.1"), node="n0", phase="Running")
    stream.changed(stream.opened(second, "1.2"), node="n0")
    stream.gone(stream.changed(first, phase="Succeeded"))
    third = stream.changed(stream.held(4), stamp="0@2")
    stream.opened(third, "2.1")
    stream.opened(foreign, "2.2")
    stream.judge.finish(stream.version)
    assert stream.found == []
    assert stream.judge.counts["released"] == 4


def test_a_pod_that_was_never_held_is_found() -> None:
    stream = Stream()
    stream.opened(stream_pod(stream), "")
    assert stream.found == ["I1"]
    assert list(stream.judge.bypassed.values()) == ["a/u1"]


def test_a_pod_created_with_a_stamp_is_found() -> None:
    stream = Stream()
    stream.opened(stream_pod(stream), "1.1")
    assert stream.found == ["I1"]


def test_an_announced_bypass_is_listed_and_no_violation() -> None:
    stream = Stream(bypass=True)
    item = stream.opened(stream_pod(stream), "")
    stream.changed(item, node="n0", phase="Running")
    assert stream.found == []
    assert list(stream.judge.bypassed.values()) == ["a/u1"]


def stream_pod(stream: Stream) -> Object:
    """Return a pod that the stream has not shown."""
    other = Stream()
    return other.held()


def test_an_exempt_pod_is_nobodys_business() -> None:
    stream = Stream()
    item = stream_pod(stream)
    item["metadata"]["namespace"] = "kube-system"
    stream.changed(stream.opened(item, ""), node="n0", phase="Running")
    assert stream.found == []


def test_gate_removal_without_a_stamp_is_found() -> None:
    stream = Stream()
    stream.opened(stream.held(), "0")
    assert stream.found == ["I2"]


def test_a_stamp_that_two_pods_carry_is_found() -> None:
    stream = Stream()
    stream.opened(stream.held(), "1.1")
    stream.opened(stream.held(), "1.1")
    assert stream.found == ["I2"]


def test_a_second_release_of_a_pod_is_found() -> None:
    stream = Stream()
    item = stream.opened(stream.held(), "1.1")
    stream.changed(item, stamp="2.1")
    assert stream.found == ["I2"]


def test_a_broken_glass_must_be_announced() -> None:
    stream, told = Stream(), Stream(by_hand=True)
    stream.opened(stream.held(), "adopted")
    told.opened(told.held(), "adopted")
    assert stream.found == ["I2"]
    assert told.found == []


def test_release_by_another_writer_is_found() -> None:
    stream = Stream()
    stream.opened(stream.held(), "1.1")
    (release,) = stream.judge.releases
    ours = Write(WRITER, "a", "u1", 200, None)
    other = Write("eve", "a", "u1", 200, True)
    assert judge_writers([release], [ours], WRITER) == []
    assert judge_writers([release], [ours, other], WRITER) != []
    assert judge_writers([release], [], WRITER) != []
    failed = Write("eve", "a", "u1", 403, True)
    assert judge_writers([release], [ours, failed], WRITER) == []


def test_an_api_server_that_was_killed_may_owe_a_line_of_its_log() -> None:
    stream = Stream()
    stream.opened(stream.held(), "1.1")
    (release,) = stream.judge.releases
    assert judge_writers([release], [], WRITER, [release.at - 1]) == []
    assert judge_writers([release], [], WRITER, [release.at - 60]) != []


def test_a_release_beyond_capacity_is_found() -> None:
    stream = Stream()
    stream.opened(stream.held(6), "1.1")
    stream.opened(stream.held(4), "1.2")
    assert stream.found == ["I3"]
    assert "10 of nvidia.com/gpu, of 8" in stream.judge.violations[0].what


def test_a_terminating_pod_still_counts() -> None:
    stream = Stream()
    item = stream.changed(stream.opened(stream.held(8), "1.1"), node="n0", phase="Running")
    item["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    stream.show("pods", item)
    stream.opened(stream.held(1), "1.2")
    assert stream.found == ["I3"]


def test_finished_pod_frees_its_capacity() -> None:
    stream = Stream()
    stream.changed(stream.opened(stream.held(8), "1.1"), phase="Failed")
    stream.opened(stream.held(8), "1.2")
    assert stream.found == []


def test_capacity_that_has_just_shrunk_still_counts_and_later_does_not() -> None:
    stream = Stream(grace=5.0)
    first, second = stream.held(3), stream.held(3)
    stream.node("n0", gpus=2)
    stream.opened(first, "1.1")
    assert stream.found == []
    stream.version += 10
    stream.opened(second, "1.2")
    assert stream.found == ["I3"]


def test_overcommitted_node_does_not_reduce_the_capacity_of_other_nodes() -> None:
    stream = Stream(nodes=2)
    stream.changed(stream.opened(stream.held(8), "1.1"), node="n0", phase="Running")
    stream.node("n0", gpus=2)
    stream.version += 10
    stream.opened(stream.held(8), "1.2")
    assert stream.found == []


def test_node_that_is_not_ready_has_no_capacity() -> None:
    stream = Stream(nodes=2)
    stream.node("n1", ready=False)
    stream.version += 10
    stream.opened(stream.held(8), "1.1")
    stream.opened(stream.held(1), "1.2")
    assert stream.found == ["I3"]


def test_two_pods_on_a_node_with_capacity_for_one_are_found() -> None:
    stream = Stream(nodes=2)
    for number in (1, 2):
        stream.changed(stream.opened(stream.held(8), f"1.{number}"), node="n0")
    assert stream.found == ["I3"]
    assert "node n0" in stream.judge.violations[0].what


def test_a_release_beyond_the_limit_of_a_tenant_above_is_found() -> None:
    stream = Stream(nodes=2)
    stream.tenant("top", limit=4)
    stream.tenant("left", parent="top", namespaces=["a"])
    stream.tenant("right", parent="top", namespaces=["b"])
    stream.version += 10
    stream.opened(stream.held(3, "a"), "1.1")
    stream.opened(stream.held(3, "b"), "1.2")
    assert stream.found == ["I3"]
    assert "tenant top" in stream.judge.violations[0].what


def test_unmapped_namespace_counts_towards_the_limit_of_tenant_default() -> None:
    stream = Stream(nodes=2)
    stream.tenant("default", limit=2)
    stream.version += 10
    stream.opened(stream.held(2, "x"), "1.1")
    stream.opened(stream.held(2, "y"), "1.2")
    assert stream.found == ["I3"]


def test_a_bound_pod_without_a_release_is_found() -> None:
    stream = Stream()
    item = stream_pod(stream)
    item["spec"].pop("schedulingGates")
    stream.show("pods", item)
    stream.changed(item, node="n0", phase="Running")
    assert stream.found == ["I1", "I4"]


def test_a_pod_from_before_must_be_adopted_in_the_end() -> None:
    stream = Stream()
    item = stream_pod(stream)
    item["spec"] = dict(item["spec"], nodeName="n0")
    item["spec"].pop("schedulingGates")
    stream.show("pods", item, exact=False, first=True)
    assert stream.found == []
    stream.judge.finish(stream.version)
    assert stream.found == ["I4"]


def test_a_pod_from_before_that_is_adopted_is_accepted() -> None:
    stream = Stream()
    item = stream_pod(stream)
    item["spec"].pop("schedulingGates")
    stream.show("pods", item, exact=False, first=True)
    stream.changed(stream.changed(item, stamp="adopted"), node="n0", phase="Running")
    stream.judge.finish(stream.version)
    assert stream.found == []


def test_ungated_and_adopted_pod_is_correct_in_mode_observe() -> None:
    stream = Stream()
    policy = {"metadata": {"name": "default", "uid": "p"}, "spec": {"mode": "Observe"}}
    stream.show("policies", policy)
    item = stream_pod(stream)
    item["spec"].pop("schedulingGates")
    stream.show("pods", item)
    stream.changed(item, stamp="adopted", node="n0")
    stream.judge.finish(stream.version)
    assert stream.found == []


def test_decreasing_epoch_is_found() -> None:
    stream = Stream()
    first, second, third = stream.held(), stream.held(), stream.held()
    stream.opened(first, "1.1")
    stream.opened(second, "2.1")
    stream.opened(third, "1.2")
    assert stream.found == ["I5"]


def test_decreasing_epoch_is_found_in_any_order_of_observation() -> None:
    stream = Stream()
    first, second, third = stream.held(), stream.held(), stream.held()
    stream.opened(first, "1.1")
    stream.opened(third, "1.2", version=50)
    stream.opened(second, "2.1", version=40)
    assert stream.found == ["I5"]


def test_decreasing_fence_is_found() -> None:
    stream = Stream()
    item = stream.changed(stream.held(), stamp="0@3")
    item = stream.changed(stream.changed(item, stamp="0@3.7"), stamp="0@4.1.0")
    assert stream.found == []
    stream.changed(item, stamp="0@2")
    assert stream.found == ["I5"]


def test_releases_first_seen_in_a_list_are_not_judged_by_order() -> None:
    stream = Stream()
    first, second = stream.held(8), stream.held(8)
    stream.opened(first, "2.1", exact=False)
    stream.opened(second, "1.1", exact=False)
    assert stream.found == []


def test_unparseable_pod_is_reported() -> None:
    stream = Stream()
    item = stream_pod(stream)
    item["spec"]["containers"][0]["resources"]["limits"][GPU] = "many"
    stream.show("pods", item)
    assert stream.found == ["observer"]


def copies() -> tuple[Stream, Copy]:
    """A cluster with one waiting and two running pods, and the Redis state expected for it."""
    stream = Stream()
    stream.held(1)
    stream.opened(stream.held(2), "1.1")
    stream.changed(stream.opened(stream.held(3), "1.2"), node="n0")
    return stream, recount(stream.judge.layout, stream.judge.pods.values())


def test_a_recount_sums_by_tenant_user_and_pool() -> None:
    _, copy = copies()
    assert copy.used["ns.a", "alice", "default", GPU] == 5
    assert copy.queues == {("ns.a", "alice"): ["u1"]}
    assert copy.charges == {"u2", "u3"}


def test_an_equal_copy_is_accepted() -> None:
    assert compare(copies()[1], copies()[1]) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda copy: copy.used.update({("ns.a", "alice", "default", GPU): 2}), "used of"),
        (lambda copy: copy.used.pop(("ns.a", "alice", "default", "pods")), "used of"),
        (lambda copy: copy.intents.add("u2"), "intent of pod u2"),
        (lambda copy: copy.queues.clear(), "queue ns.a/alice: missing"),
        (lambda copy: copy.queues["ns.a", "alice"].append("u9"), "too much ['u9']"),
        (lambda copy: copy.waiting.update({("ns.a", "alice"): 2}), "waiting of"),
        (lambda copy: copy.held.clear(), "held: missing"),
        (lambda copy: copy.charges.discard("u3"), "charges: missing"),
    ],
)
def test_a_copy_that_differs_is_found(spoil: Any, said: str) -> None:
    _, copy = copies()
    spoil(copy)
    assert any(said in line for line in compare(copies()[1], copy))


def test_a_queue_in_another_order_is_found() -> None:
    stream = Stream()
    stream.held()
    stream.held()
    wanted = recount(stream.judge.layout, stream.judge.pods.values())
    found = recount(stream.judge.layout, stream.judge.pods.values())
    found.queues["ns.a", "alice"].reverse()
    assert compare(wanted, found) == ["queue ns.a/alice: another order"]


def test_empty_redis_is_wrong_only_if_there_is_state_to_store() -> None:
    assert compare(copies()[1], None) != []
    assert compare(Copy(), None) == []


def test_pod_reservation_follows_the_formula_of_the_scheduler() -> None:
    def ask(gpus: int, **more: Any) -> Object:
        return {"resources": {"limits": {GPU: str(gpus)}}, **more}

    always = {"restartPolicy": "Always"}
    spec = {
        "containers": [ask(2), ask(1)],
        "initContainers": [ask(1, **always), ask(4), ask(1, **always)],
        "overhead": {"cpu": "250m"},
    }
    # main 3 and both sidecars: 5; at the second: 4 next to the first sidecar: also 5.
    assert reserved(spec) == {GPU: 5, "cpu": 250, "pods": 1}


@pytest.mark.parametrize(
    ("resource", "text", "value"),
    [("cpu", "1500m", 1500), ("memory", "1Ki", 1024), ("memory", "1.5k", 1500), (GPU, "1e1", 10)],
)
def test_quantities_are_exact(resource: str, text: str, value: int) -> None:
    assert amount(resource, text) == value


def test_release_is_recorded_for_the_audit_log() -> None:
    stream = Stream()
    stream.opened(stream.held(), "1.1")
    (release,) = stream.judge.releases
    assert isinstance(release, Release)
    assert release.exact
