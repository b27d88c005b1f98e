"""An authority that knows people by token, and their rights as RBAC would grant them."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.errors import ClusterUnavailable
from app.ports import Identity

Right = tuple[str, str, str]
"""Verb (`*`: any), resource[/subresource], name ("": all of them)."""


@dataclass
class People:
    """Implements `ports.Authority`. A token is the name of whose it is."""

    rights: dict[str, set[Right]] = field(default_factory=dict)
    fails: bool = False
    asked: int = 0

    async def authenticate(self, token: str) -> Identity | None:
        self.asked += 1
        if self.fails:
            raise ClusterUnavailable("no answer")
        return Identity(token) if token in self.rights else None

    async def allows(
        self,
        identity: Identity,
        verb: str,
        resource: str,
        subresource: str = "",
        name: str = "",
        *,
        group: str = "fairgate.io",
        namespace: str = "",
    ) -> bool:
        what = f"{resource}/{subresource}" if subresource else resource
        granted = self.rights.get(identity.name, set())
        verbs, names = (verb, "*"), ("", name)
        return group == "fairgate.io" and any((v, what, n) in granted for v in verbs for n in names)
