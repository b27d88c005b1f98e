"""Makes the door that a command goes through: by a kubeconfig, or by a URL and a token.

The kubeconfig is read by the `kubernetes` library, so all that kubectl takes is understood;
imported only here and when needed, because that takes a third of a second.
"""

from __future__ import annotations

import importlib
import logging
import os
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import urllib3
import yaml

from app.core.errors import InvalidInput
from app.plugin.door import AGGREGATED, DIRECT, Door

LOCAL = ("localhost", "127.0.0.1", "::1")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OSError, yaml.YAMLError)


def direct(server: str, token: str | None, authority: Path | None) -> Door:
    """Return the door to a URL, for whoever has the token. Raises InvalidInput."""
    url = urlsplit(server)
    if url.scheme not in ("https", "http") or not url.hostname or url.path.rstrip("/"):
        raise InvalidInput(f"--server {server} is not a URL such as https://fairgate.example:8443.")
    if url.scheme == "http" and url.hostname not in LOCAL:
        raise InvalidInput(f"--server {server} would send your token in the clear; use https.")
    if not token:
        raise InvalidInput(
            "With --server a token is needed: set FAIRGATE_TOKEN to what kubectl create token "
            "NAME --audience fairgate prints, or give it by --token."
        )
    proxy = None
    if not urllib.request.proxy_bypass(url.netloc):
        proxy = urllib.request.getproxies().get(url.scheme)
    trust: dict[str, Any] = {
        "cert_reqs": "CERT_REQUIRED",
        "ca_certs": str(authority) if authority else None,
    }
    pool = urllib3.ProxyManager(proxy, **trust) if proxy else urllib3.PoolManager(**trust)
    headers = [("Authorization", f"Bearer {token.strip()}")]
    return Door(pool, f"{url.scheme}://{url.netloc}", DIRECT, lambda: headers, "default")


def through(kubeconfig: Path | None, context: str | None) -> Door:
    """Return the door through the API server, as a kubeconfig has it. Raises InvalidInput."""
    configuration = importlib.import_module("kubernetes.client.configuration").Configuration()
    paths, said = _paths(kubeconfig), _Said()
    logging.getLogger().addHandler(said)
    try:
        user, namespace = _load(configuration, paths, context)
    except (_refused(), *MALFORMED) as error:
        raise InvalidInput(f"The kubeconfig {paths} cannot be used: {error}.") from error
    finally:
        logging.getLogger().removeHandler(said)
    _check(user, configuration, said)
    rest = importlib.import_module("kubernetes.client.rest")
    pool = rest.RESTClientObject(configuration).pool_manager
    deputy = _deputy(user)

    def headers() -> list[tuple[str, str]]:
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
        return [*deputy, ("Authorization", token)] if token else deputy

    return Door(pool, configuration.host.rstrip("/"), AGGREGATED, headers, namespace)


def _load(configuration: Any, paths: str | None, context: str | None) -> tuple[dict[str, Any], str]:
    """Fill in the configuration. Return the user as written, and the namespace that is meant."""
    library = importlib.import_module("kubernetes.config.kube_config")
    if paths is None:
        importlib.import_module("kubernetes.config").load_incluster_config(configuration)
        return {}, _ACCOUNT.read_text(encoding="utf-8").strip()
    merged = library.KubeConfigMerger(paths).config
    if merged is None:
        raise InvalidInput(
            f"There is no kubeconfig {paths}; name one by --kubeconfig or KUBECONFIG, "
            "or Fairgate's URL by --server."
        )
    loader = library.KubeConfigLoader(merged, active_context=context, config_base_path=None)
    loader.load_and_set(configuration)
    chosen = loader.current_context["context"]
    return _user(merged, chosen), chosen.get("namespace") or "default"


def _refused() -> type[Exception]:
    """Return what the library raises for a kubeconfig that it does not understand."""
    kind: type[Exception] = importlib.import_module("kubernetes.config").ConfigException
    return kind


def _paths(kubeconfig: Path | None) -> str | None:
    """Return the kubeconfig files as kubectl finds them; None in a pod that has none."""
    if kubeconfig is not None:
        return str(kubeconfig)
    named = os.environ.get("KUBECONFIG", "")
    if named:
        return named
    usual = Path("~/.kube/config").expanduser()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return None if in_pod and not usual.exists() else str(usual)


def _user(merged: Any, chosen: Mapping[str, str]) -> dict[str, Any]:
    name = chosen.get("user")
    found = merged["users"].get_with_name(name, safe=True) if name else None
    return (found.value.get("user") or {}) if found else {}


def _check(user: Mapping[str, Any], configuration: Any, said: _Said) -> None:
    """The library only logs it when a plugin fails, and goes on as nobody."""
    plugin = user.get("exec")
    if plugin and not configuration.api_key and not configuration.cert_file:
        why = f" ({'; '.join(said.lines)})" if said.lines else ""
        raise InvalidInput(
            f"The login program {plugin.get('command')} of your kubeconfig gave no "
            f"credentials{why}; run it by hand, or log in anew."
        )


def _deputy(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the headers by which the user of a kubeconfig acts as somebody else.

    The library does not know them, and would act as the user.
    """
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for name, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{quote(name, safe='')}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value]


class _Said(logging.Handler):
    """What the library says instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))
