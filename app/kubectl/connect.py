"""Connects to the REST API: through the API server with a kubeconfig, or directly by URL."""

from __future__ import annotations

import logging
import os
import urllib.request
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
import yaml

from app.core.errors import InvalidInput
from app.core.kubeconfig import (
    KubeconfigFile,
    KubeconfigOptions,
    impersonation_headers,
    select_context,
    with_impersonation,
)
from app.kubectl.client import AGGREGATED, DIRECT, ApiClient

LOCAL = ("localhost", "127.0.0.1", "::1")
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MALFORMED = (ValueError, TypeError, KeyError, AttributeError, OSError, yaml.YAMLError)


def direct_client(server: str, token: str | None, authority: Path | None) -> ApiClient:
    """Return a client for a URL that authenticates by token. Raises InvalidInput."""
    no_url = f"--server {server} is not a URL such as https://fairgate.example:8443."
    try:
        url = urlsplit(server)
    except ValueError as error:
        raise InvalidInput(no_url) from error
    if url.scheme not in ("https", "http") or not url.hostname or url.path.rstrip("/"):
        raise InvalidInput(no_url)
    if url.scheme == "http" and url.hostname not in LOCAL:
        raise InvalidInput(f"--server {server} would send your token in the clear; use https.")
    if not token:
        raise InvalidInput(
            "With --server a token is needed: set FAIRGATE_TOKEN to what kubectl create token "
            "NAME --audience fairgate prints, or give it by --token."
        )
    proxy = ""
    if not urllib.request.proxy_bypass(url.netloc):
        proxy = urllib.request.getproxies().get(url.scheme, "")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"  # as Go programs read it
    trust: dict[str, Any] = {
        "cert_reqs": "CERT_REQUIRED",
        "ca_certs": str(authority) if authority else None,
    }
    try:
        pool = urllib3.ProxyManager(proxy, **trust) if proxy else urllib3.PoolManager(**trust)
    except urllib3.exceptions.HTTPError as error:
        raise InvalidInput(
            f"The proxy {_without_user(proxy)} cannot be used; set {url.scheme}_proxy to the URL "
            "of an http proxy."
        ) from error
    headers = [("Authorization", f"Bearer {token.strip()}")]
    return ApiClient(pool, f"{url.scheme}://{url.netloc}", DIRECT, lambda: headers, "default")


def kubeconfig_client(options: KubeconfigOptions) -> ApiClient:
    """Return a client that goes through the API server of a kubeconfig. Raises InvalidInput."""
    # Imported here, because help and completion need no library that takes a third of a second.
    from kubernetes.client import Configuration
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.config import ConfigException

    configuration = Configuration()
    paths, said = _paths(options.kubeconfig), _Said()
    logging.getLogger().addHandler(said)
    try:
        user, namespace = _load(configuration, paths, options)
    except (ConfigException, *MALFORMED) as error:
        raise InvalidInput(f"The kubeconfig {paths} cannot be used: {error}.") from error
    finally:
        logging.getLogger().removeHandler(said)
    _check(user, configuration, said)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing packages: an error follows
            pool = RESTClientObject(configuration).pool_manager
    except (ImportError, urllib3.exceptions.HTTPError) as error:
        raise InvalidInput(
            f"The proxy {_without_user(str(configuration.proxy))} of the kubeconfig {paths} cannot "
            "be used; set its proxy-url to the URL of an http proxy."
        ) from error
    # The library ignores impersonation, and would act as the user itself.
    deputy = impersonation_headers(user)

    def headers() -> list[tuple[str, str]]:
        token = configuration.get_api_key_with_prefix("BearerToken", "authorization")
        return [*deputy, ("Authorization", token)] if token else deputy

    return ApiClient(pool, configuration.host.rstrip("/"), AGGREGATED, headers, namespace)


def _without_user(url: str) -> str:
    """Return a URL without user and password, which may not appear in messages."""
    scheme, mark, rest = url.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def _load(
    configuration: Any, paths: str | None, options: KubeconfigOptions
) -> tuple[Mapping[str, Any], str]:
    """Fill in the configuration. Return the user entry of the kubeconfig, and the namespace."""
    from kubernetes.config import load_incluster_config
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    if paths is None:
        load_incluster_config(configuration)
        return with_impersonation({}, options), _ACCOUNT.read_text(encoding="utf-8").strip()
    merger = KubeConfigMerger(paths)
    if merger.config is None:
        raise InvalidInput(
            f"There is no kubeconfig {paths}; name one by --kubeconfig or KUBECONFIG, "
            "or Fairgate's URL by --server."
        )
    files = [KubeconfigFile(path, merger.config_files[path]) for path in merger.paths]
    selected = select_context(files, options)
    # The library takes the last current-context of several files, and kubectl takes the first.
    loader = KubeConfigLoader(
        merger.config, active_context=selected.name or None, config_base_path=None
    )
    loader.load_and_set(configuration)
    return selected.user, selected.namespace


def _paths(kubeconfig: str) -> str | None:
    """Return the kubeconfig files in kubectl's order; None in a pod without a kubeconfig."""
    named = kubeconfig or os.environ.get("KUBECONFIG", "")
    if named:
        return named
    usual = Path("~/.kube/config").expanduser()
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ
    return None if in_pod and not usual.exists() else str(usual)


def _check(user: Mapping[str, Any], configuration: Any, said: _Said) -> None:
    """Raise InvalidInput if the exec plugin failed. The library only logs that, and goes on."""
    plugin = user.get("exec")
    if plugin and not configuration.api_key and not configuration.cert_file:
        why = f" ({'; '.join(said.lines)})" if said.lines else ""
        raise InvalidInput(
            f"The login program {plugin.get('command')} of your kubeconfig gave no "
            f"credentials{why}; run it by hand, or log in again."
        )


class _Said(logging.Handler):
    """Collects the log messages of the library, which it emits in place of exceptions."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))
