"""A `LeaderStateStore` in memory, with the same answers as Redis."""

from __future__ import annotations

from app.core.errors import EpochStale, StoreUnavailable
from app.core.explain.views import LeaderStateMessage
from tests.fakes.fake_store import Memory


class FakeLeaderState:
    """Instances with the same `Memory` share a server.

    `down`: no answer. `posted` counts writes.
    """

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.posted = 0

    async def store_message(self, leader_message: LeaderStateMessage) -> None:
        self._answer()
        if self.memory.floor > leader_message.epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        self.memory.leader_message = leader_message
        self.posted += 1

    async def read_message(self) -> LeaderStateMessage | None:
        self._answer()
        return self.memory.leader_message

    def _answer(self) -> None:
        if self.memory.down:
            raise StoreUnavailable("the store does not answer")
