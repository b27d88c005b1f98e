"""Ports of authentication and authorization of REST callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a caller, as authenticated by the API server."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Authorizer(Protocol):
    """TokenReview and SubjectAccessReview in the API server. May raise ClusterError."""

    async def authenticate(self, token: str) -> Identity | None:
        """Return the identity of the token, or None if the token is not valid for Fairgate."""

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
        """Return whether RBAC allows the verb. No `name` means all objects. Pods have group ""."""

    async def allows_path(self, identity: Identity, verb: str, path: str) -> bool:
        """Return whether RBAC allows the verb on a non-resource path (`nonResourceURLs`)."""
