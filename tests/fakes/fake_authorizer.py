"""An authority that identifies users by token and grants rights like RBAC."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.core.errors import ClusterUnavailable
from app.ports.auth import Identity

Right = tuple[str, str, str]
"""Verb (`*`: any), resource[/subresource], name ("": all names). For pods: `NAMESPACE:pods`."""


@dataclass
class People:
    """Implements `ports.auth.Authorizer`. A token is the name of its user."""

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
        what = what if group == "fairgate.io" else f"{namespace}:{what}"
        granted = self.rights.get(identity.name, set())
        verbs, names = (verb, "*"), ("", name)
        return any((v, what, n) in granted for v in verbs for n in names)

    async def allows_path(self, identity: Identity, verb: str, path: str) -> bool:
        return (verb, path, "") in self.rights.get(identity.name, set())


@dataclass
class Rights:
    """An authority with one token, `alices`, and a set of rights.

    A right consists of a verb and a resource, with an optional subresource, namespace and name.
    """

    granted: set[tuple[str, str]] = field(default_factory=set)
    everything: bool = False
    fails: bool = False
    token: str = "alices"
    name: str = "alice"
    asked: int = 0

    async def authenticate(self, token: str) -> Identity | None:
        self.asked += 1
        if self.fails:
            raise ClusterUnavailable("no answer from https://10.0.0.1.")
        return Identity(self.name, groups=("team-a",)) if token == self.token else None

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
        whole = "/".join(filter(None, (resource, subresource)))
        what = "/".join(filter(None, (resource, subresource, namespace, name)))
        granted = self.everything or bool({(verb, whole), (verb, what)} & self.granted)
        return identity.name == self.name and granted

    async def allows_path(self, identity: Identity, verb: str, path: str) -> bool:
        granted = self.everything or (verb, path) in self.granted
        return identity.name == self.name and granted
