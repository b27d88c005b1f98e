"""An `Epochs` in memory."""

from __future__ import annotations

from app.core.errors import EpochStale


class FakeEpochs:
    """Those that share one share the anchor."""

    def __init__(self) -> None:
        self.claimed = 0

    async def floor(self) -> int:
        return self.claimed

    async def claim(self, epoch: int) -> None:
        if epoch <= self.claimed:
            raise EpochStale(f"epoch {epoch} was claimed before")
        self.claimed = epoch
