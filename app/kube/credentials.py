"""How to reach the API server, and with which identity: the pod's service account, or a kubeconfig.

A process in a pod needs three facts of its service account and no library. `app.kube.kubeconfig`
reads kubeconfigs with the Kubernetes client library.
"""

from __future__ import annotations

import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from app.core.errors import InvalidSettings

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts the token, the CA and the namespace of a pod."""

RECHECK_SECONDS = 1.0
"""How long a token is used before its file is checked again."""


class Token:
    """The value of the Authorization header. It follows the token file if there is one."""

    def __init__(
        self,
        fixed: str = "",
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._value = fixed
        self._file = file
        self._clock = clock
        self._version: tuple[int, int] | None = None
        self._check_at = 0.0

    def value(self) -> str:
        """Return the header, "" without a token. The last value if the file is unreadable."""
        if self._file is not None and self._clock() >= self._check_at:
            self._check_at = self._clock() + RECHECK_SECONDS
            try:
                self._refresh(self._file)
            except OSError:
                if self._version is None:
                    raise
        return self._value

    def _refresh(self, file: Path) -> None:
        # The kubelet replaces the file through a symlink, so the inode shows a change like the time
        # does.
        facts = file.stat()
        version = (facts.st_ino, facts.st_mtime_ns)
        if version == self._version:
            return
        text = file.read_text(encoding="utf-8").strip()
        if text:
            self._value = f"Bearer {text}"
            self._version = version


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The address of the API server, with the identity and trust of its client.

    `headers` are sent with each request: those of impersonation.
    """

    url: str
    tls: ssl.SSLContext
    token: Token
    proxy: str | None = None
    tls_server_name: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def api_server_in_pod(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ApiServer:
    """Return the API server for the service account of this pod. Raises InvalidSettings."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "")
    token = Token(file=account / "token")
    try:
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        if not token.value():
            raise ValueError(f"{account / 'token'} is empty")
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    except (OSError, ValueError) as error:
        raise InvalidSettings(
            f"No kubeconfig is set and no service account can be used ({error}): "
            "set FAIRGATE_KUBECONFIG to a kubeconfig file, or run in a pod."
        ) from error
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ApiServer(url, tls, token)  # no proxy: the address is that of a Service


def proxy_for(url: str) -> str | None:
    """Return the proxy for a URL from the environment.

    Read once: aiohttp would read the environment, and ~/.netrc, on every request.
    """
    parts = urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return None
    return urllib.request.getproxies().get(parts.scheme)
