"""More pods than the pool can run, read directly from the API server without a proxy."""

from __future__ import annotations

from tests.faults.fault_cluster import GPUS, Rig
from tests.support.cluster_driver import Object, gates, name_of, pod, stamp

GPUS_EACH = 2
FITTING = GPUS // GPUS_EACH


class Crowd:
    """Pods of one team, by default of 2 GPUs each, that fill the pool."""

    def __init__(self, rig: Rig, team: str, pods: int = 2 * FITTING) -> None:
        self._rig = rig
        self.team = rig.stage.namespace(team)
        self.join(pods)

    def join(self, pods: int, prefix: str = "p") -> None:
        """Create more pods."""
        made = (pod(f"{prefix}-{number:03}", GPUS_EACH) for number in range(pods))
        self._rig.stage.apply(self.team, *made)

    def released(self) -> list[Object]:
        """Return the released pods, ordered by name."""
        return sorted((p for p in self._own() if not gates(p)), key=name_of)

    def held(self) -> set[str]:
        """Return the names of the held pods."""
        return {name_of(p) for p in self._own() if gates(p)}

    def stamps(self) -> set[str]:
        """Return the release stamps of the pods that still exist."""
        return {stamp(p) for p in self.released()}

    def fills(self) -> bool:
        """Return whether the pool is full and each release happened once."""
        released = self.released()
        return len({stamp(p) for p in released}) == len(released) == FITTING

    def until_full(self, seconds: float = 90.0) -> float:
        """Wait until the pool is full; return the seconds it took."""
        return self._rig.until("the pool is full", self.fills, seconds)

    def leave(self, pods: int) -> None:
        """Delete released pods at once to free capacity for as many others."""
        self._rig.stage.delete(self.team, *(name_of(p) for p in self.released()[:pods]))

    def _own(self) -> list[Object]:
        return [p for p in self._rig.pods() if p["metadata"]["namespace"] == self.team]
