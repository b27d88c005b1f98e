"""What the routes of the REST API share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.audit_ports import Lines
from app.core.engine import Engine
from app.core.model import Millis
from app.ports import QueueReader, RunReader
from app.web.access import Access
from app.web.problems import Refused
from app.web.view import View

LONGEST_PAGE = 500


@dataclass(frozen=True, slots=True)
class Ground:
    """What routes answer from. `engine` sees all and decides nothing; `age` is its, in ms."""

    access: Access
    engine: Engine
    heard: Callable[[], bool]
    age: Callable[[], int]
    now: Callable[[], Millis]
    view: View
    queues: QueueReader
    runs: RunReader
    chain: Lines

    def need_sight(self) -> None:
        """Raise Refused (503) until the cluster was seen whole."""
        if not self.heard():
            raise Refused(503, "Fairgate has just started and does not know the cluster yet.")
