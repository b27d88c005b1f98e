"""TokenReview and SubjectAccessReview: implements `ports.auth.Authorizer`.

Results are cached for a few seconds, so that polling pages cost the API server little. A denial is
cached for a shorter time, so that a new permission works soon. An invalid token is not cached.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import TypeVar

import msgspec

from app.core.errors import ClusterUnavailable
from app.kube.client import Client
from app.ports.auth import Identity
from app.ports.expiring_cache import ExpiringCache

AUDIENCE = "fairgate"
GROUP = "fairgate.io"
ALLOWED_SECONDS = 5.0
DENIED_SECONDS = 2.0
TIMEOUT = 5.0
LONGEST_TOKEN = 16 * 1024

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] | None = None
    user: _User | None = None


class _Claims(msgspec.Struct):
    aud: str | list[str] = ""


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class Reviews:
    """Implements `ports.auth.Authorizer`. `clock` returns monotonic seconds."""

    def __init__(
        self,
        client: Client,
        clock: Callable[[], float],
        audiences: Sequence[str] = (AUDIENCE,),
        of_providers: Collection[str] = (),
    ) -> None:
        """`audiences`: accepted token audiences, tried in this order. "" is the API server.

        `of_providers`: audiences of OIDC providers that the API server trusts. A token of one of
        them is also accepted, if the API server accepts it.
        """
        self._client = client
        self._audiences = audiences
        self._provider_audiences = frozenset(of_providers)
        self._identities: ExpiringCache[bytes, Identity] = ExpiringCache(clock, ALLOWED_SECONDS)
        self._allowed: ExpiringCache[Hashable, bool] = ExpiringCache(clock, ALLOWED_SECONDS)
        self._denied: ExpiringCache[Hashable, bool] = ExpiringCache(clock, DENIED_SECONDS)

    async def authenticate(self, token: str) -> Identity | None:
        """Return the identity of the token, or None if the token is not valid for Fairgate."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # Store the hash and never the token: leaked memory must not reveal tokens.
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._identities.get(key)
        if known is not None:
            return known
        for audience in self._audiences_to_try(token):
            spec = {"token": token, "audiences": [audience] if audience else []}
            answer = await self._post_review(
                TOKENS, "authentication.k8s.io/v1", "TokenReview", spec
            )
            identity = _identity(_decode(answer, _TokenReview).status, audience)
            if identity is not None:
                self._identities.put(key, identity)
                return identity
        return None

    def _audiences_to_try(self, token: str) -> Sequence[str]:
        """Return the audiences of the reviews of a token.

        A review with an audience accepts no token of an OIDC provider, because the API server takes
        these for its own audience only. So it reviews them without an audience. It then checks the
        signature, and with it the claim that was read here.
        """
        if "" in self._audiences or self._provider_audiences.isdisjoint(_claimed_audiences(token)):
            return self._audiences
        return (*self._audiences, "")

    async def allows(
        self,
        identity: Identity,
        verb: str,
        resource: str,
        subresource: str = "",
        name: str = "",
        *,
        group: str = GROUP,
        namespace: str = "",
    ) -> bool:
        """Return whether RBAC allows the verb. No `name` means all objects. Pods have group ""."""
        key = (identity, verb, group, resource, subresource, namespace, name)
        attributes = {"group": group, "verb": verb, "resource": resource}
        if namespace:
            attributes["namespace"] = namespace
        if subresource:
            attributes["subresource"] = subresource
        if name:
            attributes["name"] = name
        return await self._is_allowed(identity, key, {"resourceAttributes": attributes})

    async def allows_path(self, identity: Identity, verb: str, path: str) -> bool:
        """Return whether RBAC allows the verb on a non-resource path (`nonResourceURLs`)."""
        attributes = {"verb": verb, "path": path}
        key = (identity, verb, path)
        return await self._is_allowed(identity, key, {"nonResourceAttributes": attributes})

    async def _is_allowed(
        self, identity: Identity, key: Hashable, what: Mapping[str, Mapping[str, str]]
    ) -> bool:
        if self._allowed.get(key):
            return True
        if self._denied.get(key):
            return False
        spec = {
            "user": identity.name,
            "uid": identity.uid,
            "groups": list(identity.groups),
            "extra": {key: list(values) for key, values in identity.extra},
            **what,
        }
        answer = await self._post_review(
            ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", spec
        )
        status = _decode(answer, _AccessReview).status
        allowed = status.allowed and not status.denied
        (self._allowed if allowed else self._denied).put(key, True)
        return allowed

    async def _post_review(
        self, path: str, version: str, kind: str, spec: Mapping[str, object]
    ) -> bytes:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return await self._client.request("POST", path, body=body, timeout=TIMEOUT)


def _claimed_audiences(token: str) -> Collection[str]:
    """Return the audiences that a JSON Web Token claims, unchecked; empty if it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return ()
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        found = msgspec.json.decode(body, type=_Claims).aud
    except (ValueError, RecursionError):  # of base64, characters, msgspec; of deep nesting
        return ()
    return (found,) if isinstance(found, str) else found


def _identity(status: _TokenStatus, audience: str) -> Identity | None:
    # A server without audience support returns no audience. The token was then issued for the API
    # server, and its owner did not intend it for Fairgate.
    is_ours = not audience or audience in (status.audiences or ())
    if not status.authenticated or not is_ours:
        return None
    user = status.user
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in (user.extra or {}).items()))
    return Identity(user.username, user.uid, tuple(user.groups or ()), extra)


ReviewAnswer = TypeVar("ReviewAnswer", _TokenReview, _AccessReview)


def _decode(answer: bytes, kind: type[ReviewAnswer]) -> ReviewAnswer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(
            "The API server answered a review with something else; is it behind a proxy?"
        ) from error
