"""The door for the API server's front proxy: people arrive through it with their names in headers.

Believed is only who shows the proxy's own client certificate, and only at this door. Knows no
route; what the ConfigMap of the API server says is handed in.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope

from app.api_ports import Front
from app.core.errors import InvalidSettings
from app.ports import Identity
from app.web.limits import TLS
from app.web.problems import Refused
from app.web.serve import renew, require_client, tls_context

log = logging.getLogger("fairgate.web")

STRANGER = (
    "Only the API server's front proxy may ask here; use the API server, or Fairgate's own "
    "address with a token."
)
NAMELESS = "The API server did not say who asks; ask it with a user of your own."

Headers = Iterable[tuple[bytes, bytes]]


class FrontDoor:
    """Its TLS and whom it believes. Until `trust` is called, nobody."""

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        self._pair = (certificate_pem, key_pem)
        self._front = Front()
        self._context = self._new(b"")

    def tls(self) -> ssl.SSLContext:
        """Return the context for connections made from now on."""
        return self._context

    def renew(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Show another certificate from now on. Raises InvalidSettings."""
        renew(self._context, certificate_pem, key_pem)
        self._pair = (certificate_pem, key_pem)

    def trust(self, front: Front) -> None:
        """Believe this proxy from now on, and no other. What cannot be read changes nothing."""
        if front == self._front:
            return
        try:
            # A context in use forgets no CA. Connections of the old one are known by it.
            context = self._new(front.ca) if front.ca != self._front.ca else self._context
        except InvalidSettings as error:
            log.warning("the front proxy stays as it was", extra={"why": str(error)})
            return
        self._front, self._context = front, context
        log.info("the front proxy is known", extra={"names": front.names})

    def caller(self, scope: Scope) -> Identity:
        """Return for whom the proxy asks. Raises Refused (401)."""
        front, tls = self._front, scope.get("state", {}).get(TLS)
        if tls is None or tls.context is not self._context:
            raise Refused(401, STRANGER)
        if front.names and _common_name(tls) not in front.names:
            raise Refused(401, STRANGER)
        return _identity(front, scope["headers"])

    def _new(self, ca_pem: bytes) -> ssl.SSLContext:
        context = tls_context(*self._pair)
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


def _identity(front: Front, headers: Headers) -> Identity:
    written = [(name.decode("latin-1").lower(), value) for name, value in headers]

    def values(names: Iterable[str]) -> list[str]:
        wanted = [name.lower() for name in names]
        return [_text(value) for each in wanted for name, value in written if name == each]

    names = [name for name in values(front.users) if name]
    if not names:
        raise Refused(401, NAMELESS)
    extra: dict[str, list[str]] = {}
    for beginning in (each.lower() for each in front.extras):
        for name, value in written:
            if name.startswith(beginning):
                extra.setdefault(unquote(name[len(beginning) :]), []).append(_text(value))
    return Identity(
        name=names[0],
        uid=next((uid for uid in values(front.uids) if uid), ""),
        groups=tuple(values(front.groups)),
        extra=tuple(sorted((key, tuple(found)) for key, found in extra.items())),
    )


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise Refused(401, NAMELESS) from error
