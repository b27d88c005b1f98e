"""Gangs on a real API server, from the annotations of their pods."""

from __future__ import annotations

from tests.support.cluster_driver import Object, Stage, name_of, pod, stamp, until

SIZE = 3


def member(number: int, **annotations: str) -> Object:
    item = pod(f"m-{number}", 8)
    item["metadata"]["annotations"] = {"fairgate.io/gang": "train", **annotations}
    return item


def test_gang_starts_when_all_members_exist(stage: Stage) -> None:
    namespace = stage.namespace("gang")
    size = {"fairgate.io/gang-size": str(SIZE)}
    stage.apply(namespace, member(0, **size), member(1, **size))
    stage.apply(namespace, pod("ordinary", 1))
    until("the pod beside it runs", lambda: stage.running(namespace) == ["ordinary"])
    assert sorted(stage.held(namespace)) == ["m-0", "m-1"]
    stage.apply(namespace, member(2, **size))
    until("all run", lambda: len(stage.running(namespace)) == SIZE + 1)
    gang = [p for p in stage.pods(namespace) if name_of(p) != "ordinary"]
    numbers = sorted(int(stamp(p).partition(".")[2]) for p in gang)
    assert numbers == list(range(numbers[0], numbers[0] + SIZE))


def test_pod_with_an_invalid_gang_size_waits_alone(stage: Stage) -> None:
    namespace = stage.namespace("no-size")
    stage.apply(namespace, member(0, **{"fairgate.io/gang-size": "many"}))
    until("it runs", lambda: stage.running(namespace) == ["m-0"])
