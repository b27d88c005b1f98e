"""An OIDC provider on the loopback, which a real API server can trust."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from app.tls.certificate_authority import new_authority

KEYS, DISCOVERY = "/keys", "/.well-known/openid-configuration"


@dataclass
class OidcProvider:
    """Signs tokens, and serves the key and the discovery document."""

    issuer: str
    ca: str
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def token(self, user: str, audience: str, seconds: int = 600, **more: Any) -> str:
        """Return a token of a user for a client."""
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": audience, "sub": user, "iat": now, **more}
        head = {"alg": "ES256", "kid": "k"}
        parts = (head, {**claims, "exp": now + seconds})
        signed = ".".join(_encoded(json.dumps(each).encode()) for each in parts)
        r, s = decode_dss_signature(self.key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_encoded(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def documents(self) -> dict[str, Any]:
        """Return what the provider serves, by path."""
        numbers = self.key.public_key().public_numbers()
        x, y = (_encoded(each.to_bytes(32, "big")) for each in (numbers.x, numbers.y))
        key = {"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k"}
        return {
            KEYS: {"keys": [{**key, "x": x, "y": y}]},
            DISCOVERY: {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}{KEYS}",
                "id_token_signing_alg_values_supported": ["ES256"],
            },
        }

    def trusted(self, *audiences: str) -> dict[str, Any]:
        """Return the part of an AuthenticationConfiguration that trusts the provider."""
        issuer: dict[str, Any] = {"url": self.issuer, "audiences": list(audiences)}
        issuer["certificateAuthority"] = self.ca
        if len(audiences) > 1:
            issuer["audienceMatchPolicy"] = "MatchAny"
        names = {claim: {"claim": claim, "prefix": "oidc:"} for claim in ("sub", "groups")}
        mappings = {"username": names["sub"], "groups": names["groups"]}
        return {"issuer": issuer, "claimMappings": mappings}


@contextmanager
def oidc_provider(folder: Path) -> Iterator[OidcProvider]:
    """Serve a provider until the end of the block."""
    now = datetime.now(UTC)
    authority = new_authority("oidc", now, 1)
    issued = authority.issue(
        "oidc", names=["127.0.0.1"], server=True, client=False, now=now, days=1
    )
    certificate, key = folder / "oidc.crt", folder / "oidc.key"
    certificate.write_bytes(issued.certificate_pem)
    key.write_bytes(issued.key_pem)
    key.chmod(0o600)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(provider.documents().get(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    provider = OidcProvider(
        f"https://127.0.0.1:{server.server_address[1]}", authority.certificate_pem.decode()
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
