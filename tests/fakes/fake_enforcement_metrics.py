"""Records the calls of `ports.metrics.EnforcementMetrics`."""

from __future__ import annotations

from collections import Counter


class Guarded:
    """`restores` is by kind. `trials` are the results of each check, in order."""

    def __init__(self) -> None:
        self.restores: Counter[str] = Counter()
        self.trials: dict[str, list[bool | None]] = {}

    def count_restore(self, kind: str) -> None:
        self.restores[kind] += 1

    def set_check_result(self, check: str, well: bool | None) -> None:
        self.trials.setdefault(check, []).append(well)
