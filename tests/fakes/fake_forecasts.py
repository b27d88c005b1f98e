"""Forecasts that know no pod yet."""

from __future__ import annotations

from app.core.model import Millis, Uid
from app.ports.forecasts import Estimate


class FakeForecasts:
    """`ports.forecasts.Forecasts` without any forecast."""

    def estimate(self, uid: Uid) -> Estimate | None:
        return None

    def missing_estimate_reason(self, uid: Uid) -> str:
        return "There is no estimate yet."

    def estimate_from_wait(self, seconds: float, at: Millis) -> Estimate | None:
        return None
