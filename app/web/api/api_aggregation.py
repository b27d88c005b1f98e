"""The REST API behind the API server's aggregation layer: paths, and the caller's identity.

The API server proves itself by its front-proxy certificate and names the caller in headers.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote
from weakref import WeakSet

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.core.errors import InvalidSettings
from app.ports.api import FrontProxySettings
from app.ports.auth import Identity
from app.web.api import problems
from app.web.api.auth import CALLER
from app.web.api.refused import Refused
from app.web.server.connection_limits import TLS
from app.web.server.server import require_client, tls_context

GROUP = "api.fairgate.io"
VERSION = {"groupVersion": f"{GROUP}/v1", "version": "v1"}
ROOT = f"/apis/{GROUP}/v1"

_GROUP: dict[str, Any] = {"name": GROUP, "versions": [VERSION], "preferredVersion": VERSION}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    # No resources, so that Kubernetes controllers do not list, collect or delete anything, and
    # `kubectl get tenants` stays unambiguous.
    ROOT: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": VERSION["groupVersion"],
        "resources": [],
    },
    # The API server requests these until it gets them. The direct listener documents the routes
    # at /openapi.json.
    "/openapi/v2": {"swagger": "2.0", "info": {"title": "Fairgate", "version": "v1"}, "paths": {}},
    "/openapi/v3": {"paths": {}},
}


class Aggregated:
    """Serves discovery, and passes authenticated requests to the REST app."""

    def __init__(self, app: ASGIApp, front_door: FrontDoor) -> None:
        self._app = app
        self._front_door = front_door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            caller = self._front_door.identify_caller(scope)
        except Refused as refused:
            await problems.problem_response(refused.status, refused.detail)(scope, receive, send)
            return
        path = str(scope["path"])
        if path in DISCOVERY and scope["method"] in ("GET", "HEAD"):
            await JSONResponse(DISCOVERY[path])(scope, receive, send)
        elif path.startswith(ROOT + "/"):
            inner = path.removeprefix(f"/apis/{GROUP}")
            state = {**scope.get("state", {}), CALLER: caller}
            await self._app({**scope, "path": inner, "state": state}, receive, send)
        else:
            told = f"Nothing is served here but {ROOT}."
            await problems.problem_response(404, told)(scope, receive, send)


log = logging.getLogger("fairgate.web")

NOT_FRONT_PROXY = (
    "Only the API server's front proxy may ask here; use the API server, or Fairgate's own "
    "address with a token."
)
NO_USER_HEADER = "The API server did not name the caller; authenticate to it as a user."

Headers = Iterable[tuple[bytes, bytes]]


class FrontDoor:
    """TLS and trust of the aggregated listener. It refuses all clients until `trust_proxy` is
    called.
    """

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        self._certificate_and_key = (certificate_pem, key_pem)
        self._proxy = FrontProxySettings()
        self._context = self._create_context(certificate_pem, key_pem, b"")
        self._trusted = WeakSet([self._context])
        """The contexts that require a certificate of the present proxy."""

    def current_context(self) -> ssl.SSLContext:
        """Return the context for new connections."""
        return self._context

    def renew_certificate(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Use another serving certificate for new connections.

        Raises InvalidSettings; then the former one stays in use.
        """
        self._context = self._create_context(certificate_pem, key_pem, self._proxy.ca)
        self._trusted.add(self._context)
        self._certificate_and_key = (certificate_pem, key_pem)

    def trust_proxy(self, front: FrontProxySettings) -> None:
        """Trust exactly this proxy from now on. Ignore settings that cannot be parsed."""
        if front == self._proxy:
            return
        try:
            if front.ca != self._proxy.ca:
                # `identify_caller` refuses connections of an older context.
                self._context = self._create_context(*self._certificate_and_key, front.ca)
                self._trusted = WeakSet([self._context])
        except InvalidSettings as error:
            log.warning("the front proxy stays as it was", extra={"why": str(error)})
            return
        self._proxy = front
        log.info("the front proxy is known", extra={"names": front.allowed_names})

    def identify_caller(self, scope: Scope) -> Identity:
        """Return the user of a proxied request. Raises Refused (401)."""
        front, tls = self._proxy, scope.get("state", {}).get(TLS)
        if tls is None or tls.context not in self._trusted:
            raise Refused(401, NOT_FRONT_PROXY)
        if front.allowed_names and _common_name(tls) not in front.allowed_names:
            raise Refused(401, NOT_FRONT_PROXY)
        return _identity(front, scope["headers"])

    def _create_context(
        self, certificate_pem: bytes, key_pem: bytes, ca_pem: bytes
    ) -> ssl.SSLContext:
        context = tls_context(certificate_pem, key_pem)
        context.verify_mode = ssl.CERT_REQUIRED
        # As in Go: any certificate of the bundle is an anchor, not only a root.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if ca_pem:
            require_client(context, ca_pem)
        return context


def _common_name(tls: ssl.SSLObject) -> str:
    peer: Any = tls.getpeercert() or {}
    names = [
        value for part in peer.get("subject", ()) for key, value in part if key == "commonName"
    ]
    return str(names[-1]) if names else ""


def _identity(front: FrontProxySettings, headers: Headers) -> Identity:
    written = [(name.decode("latin-1").lower(), value) for name, value in headers]

    def values(names: Iterable[str]) -> list[str]:
        wanted = [name.lower() for name in names]
        return [_text(value) for each in wanted for name, value in written if name == each]

    names = [name for name in values(front.user_headers) if name]
    if not names:
        raise Refused(401, NO_USER_HEADER)
    extra: dict[str, list[str]] = {}
    for beginning in (each.lower() for each in front.extra_prefixes):
        for name, value in written:
            if name.startswith(beginning):
                extra.setdefault(unquote(name[len(beginning) :]), []).append(_text(value))
    return Identity(
        name=names[0],
        uid=next((uid for uid in values(front.uid_headers) if uid), ""),
        groups=tuple(values(front.group_headers)),
        extra=tuple(sorted((key, tuple(found)) for key, found in extra.items())),
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Refused(401, NO_USER_HEADER) from error
