"""The bound on epochs: forged values can never use up the epochs of real leaders."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest

from app.core.epochs import IMPLAUSIBLE_EPOCH, MAX_EPOCH, highest_plausible
from app.core.model import Millis
from app.kube.audit_anchor import KeptAnchor
from app.kube.client import Client
from app.sim.cluster.virtual_cluster import held_pod
from tests.support.controller_rig import NODE, Rig, running, until


def test_limit_of_epochs_in_redis_is_far_below_the_maximum() -> None:
    prelude = resources.files("app.store").joinpath("lua/prelude.lua").read_text()
    (far,) = re.findall(r"^local FAR = (\d+)$", prelude, re.MULTILINE)
    assert IMPLAUSIBLE_EPOCH <= int(far) <= MAX_EPOCH // 100


def test_highest_epoch_of_a_stamp_leaves_epochs_for_future_leaders() -> None:
    assert (
        highest_plausible([7, IMPLAUSIBLE_EPOCH - 1, IMPLAUSIBLE_EPOCH, MAX_EPOCH])
        == IMPLAUSIBLE_EPOCH - 1
    )
    assert MAX_EPOCH >= 10 * IMPLAUSIBLE_EPOCH


class Kept(Client):
    """An API server with one ConfigMap."""

    def __init__(self, floor: int) -> None:
        self._floor = floor

    async def request(self, method: str, path: str, **more: object) -> bytes:
        return b'{"metadata": {}, "data": {"floor": "%d"}}' % self._floor


@pytest.mark.parametrize("epoch", [IMPLAUSIBLE_EPOCH, IMPLAUSIBLE_EPOCH + 10**6, MAX_EPOCH])
async def test_anchor_reads_epochs_above_the_highest_plausible_one(epoch: int) -> None:
    assert await KeptAnchor(Kept(epoch), "fairgate-system").read_epoch_floor() == epoch


async def test_forged_stamps_and_lease_transitions_do_not_raise_epochs() -> None:
    rig = Rig()
    rig.lead.transitions = 2**31 - 1
    async with running(rig):
        forged = replace(
            held_pod("mallory", "b"),
            gates=(),
            release_annotation=f"{IMPLAUSIBLE_EPOCH}.1",
            node=NODE,
        )
        for number, stamp in enumerate(
            (f"{IMPLAUSIBLE_EPOCH}.1", "99999999999.1", "999999999999.1")
        ):
            pod = replace(forged, name=f"m{number}", release_annotation=stamp)
            await rig.create(pod)
        rig.now = Millis(rig.now + 1)
        epochs = []
        for _ in range(3):
            rig.lead.free.set()
            await until(lambda: rig.leader.is_leading)
            epochs.append(rig.leader.epoch)
            rig.lead.free.clear()
            rig.leader.end_term()
            await until(lambda: not rig.leader.is_leading)
        assert epochs == [1, 2, 3]
