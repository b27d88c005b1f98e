"""Authentication and authorization of REST callers.

A bearer token or the API server's front proxy identifies the caller. RBAC decides about rights.
It does without FastAPI, whose import costs each webhook and controller 0.2 s of CPU.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

from starlette.requests import Request

from app.core.admission.submitters import limit_name
from app.core.model import TenantName
from app.ports.auth import Authorizer, Identity
from app.web.api.refused import Refused
from app.web.server.rate_limit import RateLimit

CALLER = "fairgate.caller"
"""Key of the request state that has the caller of the aggregated API. Clients cannot set it."""

BODY_BYTES = "fairgate.bytes"
"""Key of the request state that has the size of the body."""

EARLY_CALLER = "fairgate.early-caller"
"""Key of the request state that has the caller until its first use."""

BYTES_PER_REQUEST = 16 * 1024
"""A larger body counts as several requests. A body of 1 MiB needs about a tenth of a second."""

REVIEWS_PER_REQUEST = 4
"""So many reviews of rights count as one more request of the caller."""

MOST_ASKED = 200
"""Most tenants to check one by one, if the caller lacks the right on all."""

MOST_GOOD = 10_000

ASK = "ask a cluster administrator."
"""The end of each refusal that names a missing right."""

PODS = ("", "pods")
CREATORS = {
    "Pod": PODS,
    "Job": ("batch", "jobs"),
    "Deployment": ("apps", "deployments"),
    "StatefulSet": ("apps", "statefulsets"),
    "JobSet": ("jobset.x-k8s.io", "jobsets"),
}
"""Group and resource of the kinds whose pods can be tried."""


class Access:
    """Authenticates callers and checks their rights."""

    def __init__(
        self,
        authorizer: Authorizer,
        caller_limit: RateLimit | None = None,
        address_limit: RateLimit | None = None,
    ) -> None:
        """`caller_limit`: rate limit of each caller. `address_limit`: rate limit of bad tokens per
        address.

        None: no limit.
        """
        self._authorizer = authorizer
        self._caller_limit = caller_limit
        self._address_limit = address_limit
        self._valid_tokens: OrderedDict[bytes, None] = OrderedDict()
        """Hashes of tokens that were valid at their last use, least recently used first."""

    async def authenticate_before_parsing(self, request: Request) -> None:
        """Authenticate before FastAPI parses the body. Raises Refused (401, 429).

        FastAPI runs dependencies after that, and a large body takes long.
        """
        identity = await self.authenticate_request(request)
        state = request.scope.get("state", {})
        request.scope["state"] = {**state, EARLY_CALLER: identity}

    async def authenticate_request(self, request: Request) -> Identity:
        """Return the caller. Raises Refused (401, 429). Meant as a FastAPI dependency."""
        state = request.scope.get("state", {})
        early: Identity | None = state.pop(EARLY_CALLER, None)
        if early is not None:
            return early
        known: Identity | None = state.get(CALLER)
        identity = known or await self._authenticate_token(request)
        self.count_requests(identity, 1 + state.get(BODY_BYTES, 0) // BYTES_PER_REQUEST)
        return identity

    def count_requests(self, identity: Identity, requests: int) -> None:
        """Count the work for a caller in requests. Raises Refused (429)."""
        if self._caller_limit is not None:
            wait = self._caller_limit.count_request(limit_name(identity.name), requests)
            _check_wait(wait, f"{identity.name} asks too often")

    def count_reviews(self, identity: Identity, reviews: int) -> None:
        """Count reviews of a caller's rights. Each review costs the API server a request.

        Raises Refused (429).
        """
        if reviews:
            self.count_requests(identity, reviews // REVIEWS_PER_REQUEST)

    async def _authenticate_token(self, request: Request) -> Identity:
        bearer = _bearer(request)
        if not bearer:
            # It does not count against the address. It costs no review, and health checks of a
            # load balancer without a token would otherwise block the callers behind it.
            raise Refused(401, "Send a token: Authorization: Bearer TOKEN, of audience fairgate.")
        address = _address(request)
        # Each unknown token costs the API server a review. Tokens that were valid before do not
        # count against the address, because behind a proxy all callers share one address.
        token = _hash(bearer)
        counted = self._address_limit is not None and token not in self._valid_tokens
        if (
            self._address_limit is not None and counted
        ):  # before the review: requests may be parallel
            _check_wait(
                self._address_limit.count_request(address),
                f"Too many bad tokens came from {address}",
            )
        identity = await self._authorizer.authenticate(bearer)
        if self._address_limit is not None and counted != (identity is None):
            (self._address_limit.return_token if counted else self._address_limit.count_request)(
                address
            )
        self._remember_token(token, good=identity is not None)
        if identity is None:
            raise Refused(
                401,
                "This token is not valid, or not for Fairgate; make one with "
                "kubectl create token NAME --audience fairgate.",
            )
        return identity

    def _remember_token(self, token: bytes, *, good: bool) -> None:
        self._valid_tokens.pop(token, None)
        if good:
            self._valid_tokens[token] = None
            if len(self._valid_tokens) > MOST_GOOD:
                self._valid_tokens.popitem(last=False)

    async def is_allowed(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> bool:
        """Return whether RBAC grants this in group `fairgate.io`; no `name`: on all objects."""
        return await self._authorizer.allows(identity, verb, resource, subresource, name)

    async def may_get(self, identity: Identity, resource: str, subresource: str, name: str) -> bool:
        """Return whether RBAC lets the caller `get` a named object.

        It first asks about all objects: the answer serves every name for some seconds, so a caller
        that pages through all tenants costs the API server one review.
        """
        return await self.is_allowed(identity, "get", resource, subresource) or (
            await self.is_allowed(identity, "get", resource, subresource, name)
        )

    async def readable_tenants(
        self, identity: Identity, names: Sequence[TenantName]
    ) -> list[TenantName]:
        """Return which of these tenants the caller may list or get. Raises Refused (429).

        Without a right on all tenants, only the first `MOST_ASKED` are checked.
        """
        for verb in ("list", "get"):
            if await self.is_allowed(identity, verb, "tenants"):
                return list(names)
        asked = names[:MOST_ASKED]
        self.count_reviews(identity, len(asked))
        rights = await asyncio.gather(
            *(self.is_allowed(identity, "get", "tenants", name=name) for name in asked)
        )
        return [name for name, may in zip(asked, rights, strict=True) if may]

    async def require(
        self, identity: Identity, verb: str, resource: str, subresource: str = "", name: str = ""
    ) -> None:
        """Raise Refused (403), which names the missing right, unless RBAC grants it.

        A read of a named object first asks about all objects, as `may_get` does.
        """
        if name and verb == "get":
            allowed = await self.may_get(identity, resource, subresource, name)
        else:
            allowed = await self.is_allowed(identity, verb, resource, subresource, name)
        if allowed:
            return
        what = f"{resource}/{subresource}" if subresource else resource
        of = f" {name}" if name else ""
        raise Refused(403, f"{identity.name} may not {verb} {what}.fairgate.io{of}; {ASK}")

    async def require_path(self, request: Request, path: str) -> None:
        """Raise Refused (401, 403, 429) unless RBAC lets the caller `get` a path.

        A refusal counts as a bad token, because it costs the API server a review.
        """
        identity = await self.authenticate_request(request)
        if not await self._authorizer.allows_path(identity, "get", path):
            bearer = _bearer(request)
            if bearer and self._address_limit is not None:
                self._valid_tokens.pop(_hash(bearer), None)
                self._address_limit.count_request(_address(request))
            raise Refused(
                403,
                f"{identity.name} may not get {path}; bind ClusterRole fairgate-metrics-reader.",
            )

    async def require_pod(self, identity: Identity, namespace: str, name: str) -> None:
        """Raise Refused (403) unless RBAC lets the caller `get` pods of this name.

        It first asks about all pods of the namespace, as `require` does.
        """
        for each in ("", name):
            if await self._authorizer.allows(
                identity, "get", "pods", name=each, group="", namespace=namespace
            ):
                return
        raise Refused(
            403,
            f"{identity.name} may not get pods {name} in namespace {namespace}; the right to get "
            "the pod is required.",
        )

    async def require_events(self, identity: Identity, namespace: str) -> None:
        """Raise Refused (403) unless RBAC lets the caller `list` the events of a namespace."""
        if not await self._authorizer.allows(
            identity, "list", "events", group="", namespace=namespace
        ):
            raise Refused(
                403,
                f"{identity.name} may not list events in namespace {namespace}; ask "
                "for this right there.",
            )

    async def require_create(self, identity: Identity, kind: str, namespace: str) -> None:
        """Raise Refused (403) unless RBAC lets the caller create pods or objects of a kind."""
        for group, resource in (PODS, CREATORS[kind]):
            if await self._authorizer.allows(
                identity, "create", resource, group=group, namespace=namespace
            ):
                return
        _, resource = CREATORS[kind]
        raise Refused(
            403,
            f"{identity.name} may not create {resource} in namespace {namespace}; ask for the "
            "right, or name another namespace.",
        )


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _bearer(request: Request) -> str:
    """Return the token in the header Authorization; empty: there is no bearer token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _hash(bearer: str) -> bytes:
    return sha256(bearer.encode("utf-8", "surrogatepass")).digest()


def _check_wait(wait: float, why: str) -> None:
    """Raise Refused (429) if `wait`, in seconds, is not 0."""
    if wait:
        seconds = math.ceil(wait)
        raise Refused(429, f"{why}; try again in {seconds} s.", {"Retry-After": str(seconds)})
