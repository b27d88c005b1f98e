"""`fairgate audit verify` terminates while the chain grows or changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.commands.audit.command import verify_stream
from app.core.audit.codec import SignedHead
from app.core.audit.verifier import BrokenChain
from app.core.model import Millis
from app.ports.audit import StreamTail
from tests.fakes.fake_audit_stream import FakeTrail
from tests.support.audit_world import World, held


class Busy:
    """A chain that gets a new entry each time its end is read."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trail = FakeTrail(world.stream)
        self.walks = 0

    async def begin(self) -> None:
        self.chain = await self.world.term(1, 50)

    async def read_tail(self) -> StreamTail:
        await self.chain.seal([held(1)])
        await self.chain.anchor()
        return await self.trail.read_tail()

    async def read_lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        return await self.trail.read_lines(after, limit)

    async def anchored(self) -> SignedHead:
        self.walks += 1
        assert self.world.anchor.head is not None
        return self.world.anchor.head


@pytest.fixture
async def busy() -> Busy:
    busy = Busy(World())
    await busy.begin()
    return busy


async def test_a_chain_that_grows_is_verified(busy: Busy) -> None:
    verdict = await verify_stream(busy, busy.anchored)
    assert (verdict.entries, busy.walks) == (52, 1)


async def test_edited_growing_chain_is_reported_at_the_second_walk(busy: Busy) -> None:
    number, text = busy.world.stream.rows[10]
    busy.world.stream.rows[10] = (number, text.replace('"p9"', '"pX"'))
    with pytest.raises(BrokenChain, match="entry 11"):
        await verify_stream(busy, busy.anchored)
    assert busy.walks == 2


async def test_a_chain_that_is_edited_again_and_again_is_given_up(busy: Busy) -> None:
    class Moving(Busy):
        async def read_lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
            found = list(await super().read_lines(after, limit))
            return [*found[: self.walks], *found[self.walks + 1 :]] if not after else found

    moving = Moving(busy.world)
    moving.chain = busy.chain
    with pytest.raises(BrokenChain):
        await verify_stream(moving, moving.anchored)
    assert moving.walks == 5


async def test_head_with_an_invalid_signature_is_reported_at_the_first_walk(busy: Busy) -> None:
    signed = busy.world.stream.signed
    assert signed is not None
    forged = replace(signed, at=Millis(99))

    class Forging(Busy):
        async def read_tail(self) -> StreamTail:
            return replace(await super().read_tail(), signed_head=forged)

    forging = Forging(busy.world)
    forging.chain = busy.chain
    with pytest.raises(BrokenChain, match="signature of the head"):
        await verify_stream(forging, forging.anchored)
    assert forging.walks == 1
