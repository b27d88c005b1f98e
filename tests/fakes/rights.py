"""Who may do what, without an API server."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.errors import ClusterUnavailable
from app.ports import Identity


@dataclass
class Rights:
    """An authority that knows one token, `alices`, and a set of rights.

    A right is a verb and a resource, with its subresource and name if it has those. `granted` on
    all of them covers each.
    """

    granted: set[tuple[str, str]] = field(default_factory=set)
    token: str = "alices"
    name: str = "alice@example.com"
    fails: bool = False
    asked: int = 0

    async def authenticate(self, token: str) -> Identity | None:
        """Return whose token it is."""
        self.asked += 1
        if self.fails:
            raise ClusterUnavailable("no answer from https://10.0.0.1.")
        return Identity(self.name) if token == self.token else None

    async def allows(
        self,
        identity: Identity,
        verb: str,
        resource: str,
        subresource: str = "",
        name: str = "",
        **_: str,
    ) -> bool:
        """Tell whether the right was granted, on this one or on all."""
        whole = "/".join(filter(None, (resource, subresource)))
        return bool({(verb, whole), (verb, f"{whole}/{name}")} & self.granted)
