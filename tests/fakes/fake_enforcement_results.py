"""`EnforcementResults` in memory, with the same answers as Redis."""

from __future__ import annotations

from dataclasses import replace

from app.core.errors import StoreUnavailable
from app.core.model import Millis
from app.ports.api import EnforcementResult
from tests.fakes.fake_store import Memory


class FakeEnforcementResults:
    """`memory.down`: no answer."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.result: EnforcementResult | None = None
        self.renewed = Millis(0)

    async def store_result(self, result: EnforcementResult) -> None:
        self._answer()
        self.result = result

    async def record_heartbeat(self, at: Millis) -> None:
        self._answer()
        self.renewed = at

    async def read_result(self) -> EnforcementResult | None:
        self._answer()
        return self.result and replace(self.result, last_heartbeat=self.renewed)

    def _answer(self) -> None:
        if self.memory.down:
            raise StoreUnavailable("the store does not answer")
