"""How long to leave an API server alone that did not do as asked. Knows nothing of what was."""

from __future__ import annotations

from app.core.errors import ClusterError, ClusterRefused

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 30.0


class Patience:
    """Grows with each failure in a row."""

    def __init__(self, first: float = FIRST_SECONDS) -> None:
        self.failures = 0
        self._first = first

    def fulfilled(self) -> None:
        """The server did as asked."""
        self.failures = 0

    def after(self, error: ClusterError) -> float:
        """Return the seconds to wait after a failure: as long as the server asks, at least."""
        self.failures += 1
        asked = error.retry_after or 0.0 if isinstance(error, ClusterRefused) else 0.0
        grown: float = self._first * 2 ** min(self.failures - 1, 10)
        return min(LONGEST_SECONDS, max(grown, asked))
