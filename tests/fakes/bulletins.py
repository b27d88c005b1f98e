"""`Bulletins` in memory: the same answers as Redis, by the plainest means."""

from __future__ import annotations

from app.core.errors import EpochStale, StoreUnavailable
from app.core.telling.views import Bulletin
from tests.fakes.store import Memory


class FakeBulletins:
    """Those that share a Memory share a server; `down`: it does not answer. `posted` counts."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.posted = 0

    async def post(self, bulletin: Bulletin) -> None:
        self._answer()
        if self.memory.floor > bulletin.epoch:
            raise EpochStale(f"a leader with epoch {self.memory.floor} has written")
        self.memory.bulletin = bulletin
        self.posted += 1

    async def read(self) -> Bulletin | None:
        self._answer()
        return self.memory.bulletin

    def _answer(self) -> None:
        if self.memory.down:
            raise StoreUnavailable("the store does not answer")
