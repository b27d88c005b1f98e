"""More pods than the pool takes: what is released and what waits, read past every cable."""

from __future__ import annotations

from tests.e2e.stage import Object, gates, name_of, pod, stamp
from tests.faults.rig import GPUS, Rig

GPUS_EACH = 2
FITTING = GPUS // GPUS_EACH


class Crowd:
    """Pods of one team, of 2 GPUs each unless told otherwise; the pool is filled by them."""

    def __init__(self, rig: Rig, team: str, pods: int = 2 * FITTING) -> None:
        self._rig = rig
        self.team = rig.stage.namespace(team)
        self.join(pods)

    def join(self, pods: int, prefix: str = "p") -> None:
        """Let more come."""
        made = (pod(f"{prefix}-{number:03}", GPUS_EACH) for number in range(pods))
        self._rig.stage.apply(self.team, *made)

    def released(self) -> list[Object]:
        """Return the pods past the gate, in the order of their names."""
        return sorted((p for p in self._own() if not gates(p)), key=name_of)

    def held(self) -> set[str]:
        """Return the names of those that wait."""
        return {name_of(p) for p in self._own() if gates(p)}

    def stamps(self) -> set[str]:
        """Return the stamps of the releases so far, of pods that are still there."""
        return {stamp(p) for p in self.released()}

    def fills(self) -> bool:
        """Tell whether all that fit are released, each once."""
        return len(self.stamps()) == len(self.released()) == FITTING

    def until_full(self, seconds: float = 90.0) -> float:
        """Wait until the pool is full; return the seconds it took."""
        return self._rig.until("the pool is full", self.fills, seconds)

    def leave(self, pods: int) -> None:
        """Delete released pods at once: room for as many others."""
        self._rig.stage.delete(self.team, *(name_of(p) for p in self.released()[:pods]))

    def _own(self) -> list[Object]:
        return [p for p in self._rig.pods() if p["metadata"]["namespace"] == self.team]
