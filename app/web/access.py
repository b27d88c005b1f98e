"""Who may call the REST API, and for what: a bearer token, then ordinary RBAC."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.ports import Authority, Identity
from app.web.problems import Refused

_bearer = HTTPBearer(
    auto_error=False, description="A token of audience `fairgate`, as `kubectl create token` makes."
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Access:
    """Tells callers from strangers, and what each may do."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def caller(self, bearer: Bearer) -> Identity:
        """Return who calls. Raises Refused (401). Meant as a FastAPI dependency."""
        if bearer is None:
            raise Refused(401, "Send a token: Authorization: Bearer TOKEN, of audience fairgate.")
        identity = await self._authority.authenticate(bearer.credentials)
        if identity is None:
            raise Refused(
                401,
                "This token is not valid, or not for Fairgate; make one with "
                "kubectl create token NAME --audience fairgate.",
            )
        return identity

    async def need(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> None:
        """Raise Refused (403), naming the right that is missing, unless RBAC grants it."""
        if await self._authority.allows(identity, verb, resource, subresource, name):
            return
        what = f"{resource}/{subresource}" if subresource else resource
        of = f" {name}" if name else ""
        raise Refused(403, f"{identity.name} may not {verb} {what}.fairgate.io{of}; ask for it.")

    async def need_pod(self, identity: Identity, namespace: str, name: str) -> None:
        """Raise Refused (403) unless RBAC lets the caller `get` this pod, or what has its name."""
        if await self._authority.allows(
            identity, "get", "pods", name=name, group="", namespace=namespace
        ):
            return
        raise Refused(
            403,
            f"{identity.name} may not get pods {name} in namespace {namespace}; why a pod waits "
            "is told to whoever may get it.",
        )
