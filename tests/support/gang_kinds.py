"""Waits for gangs of any kind of pod group."""

from __future__ import annotations

from tests.support.cluster_driver import Stage, stamp, until


def told(stage: Stage, namespace: str, reason: str) -> str:
    """Return the events of a reason as one text."""
    found = stage.get("events", "-n", namespace, f"--field-selector=reason={reason}")["items"]
    return "\n".join(f"{each['involvedObject']['name']}: {each['message']}" for each in found)


def numbers(stage: Stage, namespace: str) -> list[int]:
    """Return the sequence numbers of the releases, in order."""
    stamps = [stamp(p) for p in stage.pods(namespace)]
    return sorted(int(each.partition(".")[2]) for each in stamps if "." in each)


def together(stage: Stage, namespace: str, count: int) -> None:
    """Check that all pods of a gang run and have consecutive release numbers."""
    until("all run", lambda: len(stage.running(namespace)) == count)
    found = numbers(stage, namespace)
    assert found == list(range(found[0], found[0] + count))
