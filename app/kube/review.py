"""Asks the API server who a caller is and what they may do: `ports.Authority`.

Good answers are believed for a few seconds, so that a page that polls costs the API server
little; a no is asked again every time, so that a right just given works at once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

import msgspec

from app.core.errors import ClusterUnavailable
from app.kube.client import Client
from app.ports import Identity

AUDIENCE = "fairgate"
GROUP = "fairgate.io"
BELIEVED_SECONDS = 5.0
MOST_BELIEVED = 10_000
TIMEOUT = 5.0
LONGEST_TOKEN = 16 * 1024

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    audiences: list[str] | None = None
    user: _User | None = None


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class _AccessStatus(msgspec.Struct):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class Reviews:
    """Implements `ports.Authority`. `clock` gives monotonic seconds."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._identities: _Believed[bytes, Identity] = _Believed(clock)
        self._rights: _Believed[Hashable, bool] = _Believed(clock)

    async def authenticate(self, token: str) -> Identity | None:
        """Return whose token this is; None if it is not valid for Fairgate."""
        if not token or len(token) > LONGEST_TOKEN:
            return None
        # The hash is kept, never the token: memory that leaks should not open doors.
        key = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._identities.get(key)
        if known is not None:
            return known
        spec = {"token": token, "audiences": [AUDIENCE]}
        answer = await self._ask(TOKENS, "authentication.k8s.io/v1", "TokenReview", spec)
        identity = _identity(_decode(answer, _TokenReview).status)
        if identity is not None:
            self._identities.put(key, identity)
        return identity

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
        """Tell whether RBAC grants this; no `name`: on all of them. Group "" is that of pods."""
        key = (identity, verb, group, resource, subresource, namespace, name)
        if self._rights.get(key):
            return True
        attributes = {"group": group, "verb": verb, "resource": resource}
        if namespace:
            attributes["namespace"] = namespace
        if subresource:
            attributes["subresource"] = subresource
        if name:
            attributes["name"] = name
        spec = {
            "user": identity.name,
            "uid": identity.uid,
            "groups": list(identity.groups),
            "extra": {key: list(values) for key, values in identity.extra},
            "resourceAttributes": attributes,
        }
        answer = await self._ask(ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        status = _decode(answer, _AccessReview).status
        allowed = status.allowed and not status.denied
        if allowed:
            self._rights.put(key, True)
        return allowed

    async def _ask(self, path: str, version: str, kind: str, spec: Mapping[str, object]) -> bytes:
        body = msgspec.json.encode({"apiVersion": version, "kind": kind, "spec": spec})
        return await self._client.request("POST", path, body=body, timeout=TIMEOUT)


class _Believed(Generic[Key, Value]):
    """Values that are believed for a while, the oldest given up first when there are too many."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        return value if self._clock() < until else None

    def put(self, key: Key, value: Value) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (self._clock() + BELIEVED_SECONDS, value)
        if len(self._entries) > MOST_BELIEVED:
            self._entries.popitem(last=False)


def _identity(status: _TokenStatus) -> Identity | None:
    # A server that knows no audiences answers without them: then the token was made for the API
    # server, and whoever holds it never meant to show it to us.
    if not status.authenticated or AUDIENCE not in (status.audiences or ()):
        return None
    user = status.user
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in (user.extra or {}).items()))
    return Identity(user.username, user.uid, tuple(user.groups or ()), extra)


Answer = TypeVar("Answer", _TokenReview, _AccessReview)


def _decode(answer: bytes, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(
            "The API server answered a review with something else; is it behind a proxy?"
        ) from error
