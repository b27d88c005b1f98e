"""What was said on the command line of the way to Fairgate. Light: completion imports it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.plugin.door import Door


@dataclass(frozen=True, slots=True)
class Way:
    """A kubeconfig and its context, or a server with a token and its CA."""

    kubeconfig: Path | None = None
    context: str | None = None
    server: str | None = None
    token: str | None = None
    authority: Path | None = None

    def open(self) -> Door:
        """Return the door; nobody is asked yet. Raises InvalidInput."""
        from app.plugin import doors

        if self.server is not None:
            return doors.direct(self.server, self.token, self.authority)
        return doors.through(self.kubeconfig, self.context)
