"""Reads the devices that HAMi writes to a node."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest

from app.core.model import Amounts, Millis, Node
from app.core.podspec.device_fractions import CORES, MEMORY
from app.k8s_types.objects import NodeObject
from app.kube.convert import read_node
from app.kube.hami import ANNOTATION


def hami_node(cores: int, memory: int, **advertised: str) -> Node:
    """Return a node with four devices of these cores and this memory in its annotation."""
    device = {"devmem": memory, "devcore": cores, "health": True, "type": "A"}
    document = {
        "metadata": {"name": "n1", "annotations": {ANNOTATION: json.dumps([device] * 4)}},
        "status": {"allocatable": {"nvidia.com/gpu": "4", **advertised}},
    }
    return read_node(msgspec.convert(document, NodeObject), Millis(1)).node


def hami_amounts(node: Node) -> Amounts:
    """Return the cores and memory of a node."""
    return {r: node.allocatable[r] for r in (CORES, MEMORY) if r in node.allocatable}


def test_devices_in_the_annotation_are_capacity() -> None:
    assert hami_amounts(hami_node(100, 40960)) == {CORES: 400, MEMORY: 163840}


@pytest.mark.parametrize(
    ("cores", "memory", "advertised", "remains"),
    [
        ((1 << 31) - 1, 40960, {}, {MEMORY: 163840}),
        (100, (1 << 31) - 1, {}, {CORES: 400}),
        (100, 40960, {CORES: "9E"}, {MEMORY: 163840}),
        (100, 40960, {MEMORY: "9E", CORES: "102401"}, {}),
    ],
)
def test_more_devices_than_a_node_can_have_are_ignored_with_one_warning(
    cores: int,
    memory: int,
    advertised: dict[str, str],
    remains: Amounts,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "fairgate.kube"):
        for _ in range(2):  # HAMi writes its annotation often
            node = hami_node(cores, memory, **advertised)
            assert hami_amounts(node) == remains
    [record] = caplog.records
    assert (record.msg, record.__dict__["node"]) == (
        "device amounts ignored: no node has so many devices",
        "n1",
    )
