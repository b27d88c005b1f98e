"""Who may call the REST API, and for what: a bearer token, or the API server's word; then RBAC."""

from __future__ import annotations

import math
from collections import OrderedDict
from hashlib import sha256
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from app.ports import Authority, Identity
from app.web.pace import Pace
from app.web.problems import Refused

CALLER = "fairgate.caller"
"""Where in the state of a request the aggregated door puts who calls. Nobody outside can."""

MOST_GOOD = 10_000

_bearer = HTTPBearer(
    auto_error=False, description="A token of audience `fairgate`, as `kubectl create token` makes."
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Access:
    """Tells callers from strangers, and what each may do."""

    def __init__(
        self, authority: Authority, callers: Pace | None = None, strangers: Pace | None = None
    ) -> None:
        """`callers`: how often one caller may ask; `strangers`: how many bad tokens one address
        may send. None: as often as they like.
        """
        self._authority = authority
        self._callers = callers
        self._strangers = strangers
        self._good: OrderedDict[bytes, None] = OrderedDict()
        """Hashes of tokens that were good when they were last seen."""

    async def caller(self, request: Request, bearer: Bearer) -> Identity:
        """Return who calls. Raises Refused (401, 429). Meant as a FastAPI dependency."""
        known: Identity | None = request.scope.get("state", {}).get(CALLER)
        identity = known or await self._by_token(request, bearer)
        if self._callers is not None:
            _heed(self._callers.take(identity.name), f"{identity.name} asks too often")
        return identity

    async def _by_token(
        self, request: Request, bearer: HTTPAuthorizationCredentials | None
    ) -> Identity:
        if bearer is None:
            raise Refused(401, "Send a token: Authorization: Bearer TOKEN, of audience fairgate.")
        address = request.client.host if request.client else ""
        # Each token that we do not know costs the API server a question. Who was let in before is
        # no stranger: behind a proxy, everybody comes from one address.
        token = sha256(bearer.credentials.encode("utf-8", "surrogatepass")).digest()
        if self._strangers is not None and token not in self._good:
            _heed(self._strangers.wait(address), f"Too many bad tokens came from {address}")
        identity = await self._authority.authenticate(bearer.credentials)
        self._remember(token, good=identity is not None)
        if identity is None:
            if self._strangers is not None:
                self._strangers.take(address)
            raise Refused(
                401,
                "This token is not valid, or not for Fairgate; make one with "
                "kubectl create token NAME --audience fairgate.",
            )
        return identity

    def _remember(self, token: bytes, *, good: bool) -> None:
        self._good.pop(token, None)
        if good:
            self._good[token] = None
            if len(self._good) > MOST_GOOD:
                self._good.popitem(last=False)

    async def may(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> bool:
        """Tell whether RBAC on group `fairgate.io` grants this; no `name`: on all of them."""
        return await self._authority.allows(identity, verb, resource, subresource, name)

    async def need(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> None:
        """Raise Refused (403), naming the right that is missing, unless RBAC grants it."""
        if await self.may(identity, verb, resource, subresource, name):
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


def _heed(wait: float, why: str) -> None:
    """Raise Refused (429) if there is anything to wait for, in seconds."""
    if wait:
        seconds = math.ceil(wait)
        raise Refused(429, f"{why}; try again in {seconds} s.", {"Retry-After": str(seconds)})
