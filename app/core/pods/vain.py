"""The reasons for which a pod may be found useless. Values only."""

from __future__ import annotations

from enum import Enum


class Vain(Enum):
    """Why a pod holds its place in vain."""

    OWNERLESS = "ownerless"
    """It is held, and its controller is gone."""
    IDLE = "idle"
    """It runs, and leaves its devices idle."""
