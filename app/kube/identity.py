"""How the API server is reached and who we are to it: kubeconfig or in-cluster configuration.

Built on `kubernetes.aio.config`. Knows nothing of requests.
"""

from __future__ import annotations

import importlib
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.core.errors import InvalidSettings

RECHECK_SECONDS = 1.0
"""How long a token is used before its file is looked at again."""


MALFORMED = (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""What the library raises for a file that is not shaped like a kubeconfig."""


class Token:
    """The value of the Authorization header; follows a token file when there is one."""

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
        """Return the header, "" for none. A file that cannot be read keeps the last value."""
        if self._file is not None and self._clock() >= self._check_at:
            self._check_at = self._clock() + RECHECK_SECONDS
            try:
                self._refresh(self._file)
            except OSError:
                if self._version is None:
                    raise
        return self._value

    def _refresh(self, file: Path) -> None:
        # Kubelet replaces the file through a symlink: the inode tells as much as the time.
        facts = file.stat()
        version = (facts.st_ino, facts.st_mtime_ns)
        if version == self._version:
            return
        text = file.read_text(encoding="utf-8").strip()
        if text:
            self._value = f"Bearer {text}"
            self._version = version


async def load(kubeconfig: str | Path | None) -> tuple[Any, Token]:
    """Return the client library's Configuration, and our token.

    Without a kubeconfig the process must run in a pod. Raises InvalidSettings.
    """
    # Imported here: it costs a third of a second, which `--help` should not pay.
    library = importlib.import_module("kubernetes.aio.config")
    model = importlib.import_module("kubernetes.aio.client.configuration")
    configuration = model.Configuration()
    try:
        if kubeconfig is None:
            library.load_incluster_config(configuration, try_refresh_token=False)
            token_file: Path | None = _in_cluster_token()
        else:
            user, _ = current(Path(kubeconfig))
            token_file = _named_token(Path(kubeconfig), user)
            await library.load_kube_config(
                config_file=str(kubeconfig),
                client_configuration=configuration,
                persist_config=False,
            )
            _check_plugin(user, configuration)
        token = Token(configuration.api_key.get("BearerToken", "").strip(), token_file)
        token.value()
    except (library.ConfigException, OSError, *MALFORMED) as error:
        raise unusable(kubeconfig, error) from error
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    return configuration, token


def unusable(kubeconfig: str | Path | None, error: Exception) -> InvalidSettings:
    """Return the error to raise when the API server cannot be addressed."""
    if kubeconfig is None:
        return InvalidSettings(
            f"No kubeconfig is set and no service account can be used ({error}): "
            "set FAIRGATE_KUBECONFIG to a kubeconfig file, or run in a pod."
        )
    return InvalidSettings(
        f"The kubeconfig {kubeconfig} cannot be used: {error}. Check the file and what it names."
    )


def _in_cluster_token() -> Path:
    library = importlib.import_module("kubernetes.aio.config.incluster_config")
    return Path(library.SERVICE_TOKEN_FILENAME)


def current(kubeconfig: Path) -> tuple[dict[str, Any], str]:
    """Return the current user of a kubeconfig as written there, and the namespace it means.

    Raises OSError, or what MALFORMED lists.
    """
    written = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    if not isinstance(written, dict):
        raise ValueError("it holds no configuration")
    context = _named(written, "contexts", written.get("current-context")).get("context", {})
    user = _named(written, "users", context.get("user")).get("user") or {}
    return dict(user), str(context.get("namespace") or "default")


def _named_token(kubeconfig: Path, user: dict[str, Any]) -> Path | None:
    """Return the token file that a user names."""
    name = user.get("tokenFile")
    return kubeconfig.absolute().parent / name if name else None


def _check_plugin(user: dict[str, Any], configuration: Any) -> None:
    """The library only logs it when a plugin fails, and goes on as nobody."""
    plugin = user.get("exec")
    if plugin and not configuration.api_key.get("BearerToken") and not configuration.cert_file:
        raise ValueError(f"its plugin {plugin.get('command')} gave neither token nor certificate")


def _named(config: dict[str, Any], section: str, name: str | None) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if entry.get("name") == name:
            return dict(entry)
    return {}


def _proxy(host: str) -> str | None:
    """Return the proxy that the environment names for this host.

    Asked once: the library would read the environment, and ~/.netrc, on every request.
    """
    url = urlsplit(host)
    if not url.hostname or urllib.request.proxy_bypass(url.hostname):
        return None
    return urllib.request.getproxies().get(url.scheme)
