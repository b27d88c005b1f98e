"""Finds the kubeconfig of a command, and loads the credentials of a kubeconfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from app.core.errors import InvalidSettings
from app.core.kubeconfig import (
    SEPARATOR,
    KubeconfigFile,
    KubeconfigOptions,
    SelectedContext,
    impersonation_headers,
    select_context,
    with_impersonation,
)
from app.kube.credentials import SERVICE_ACCOUNT, ApiServer, Token, proxy_for

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""Errors that the library raises for a file that is not a valid kubeconfig."""


async def load_api_server(options: KubeconfigOptions) -> ApiServer:
    """Return the API server of a kubeconfig, with the credentials in it. Raises InvalidSettings."""
    # Imported here: the library takes 13 MB and 0.2 s of CPU, and pods do without it.
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config import ConfigException, load_kube_config

    paths = options.kubeconfig
    configuration = Configuration()
    try:
        selected = select_context(_read(paths), options)
        await load_kube_config(
            config_file=paths,
            context=selected.name or None,
            client_configuration=configuration,
            persist_config=False,
        )
        _check_plugin(selected.user, configuration)
        token = Token(configuration.api_key.get("BearerToken", "").strip(), _token_file(selected))
        token.value()
        tls = RESTClientObject(configuration).ssl_context
    except (ConfigException, OSError, *MALFORMED) as error:
        raise unusable_error(paths, error) from error
    return ApiServer(
        configuration.host,
        tls,
        token,
        configuration.proxy or proxy_for(configuration.host),
        configuration.tls_server_name,
        tuple(impersonation_headers(selected.user)),
    )


def unusable_error(kubeconfig: str, error: Exception) -> InvalidSettings:
    """Return the error for a kubeconfig that cannot be used."""
    return InvalidSettings(
        f"The kubeconfig {kubeconfig} cannot be used: {error}. Check the file and "
        "the files that it names."
    )


def _read(paths: str) -> list[KubeconfigFile]:
    """Read the files of a list that exist. Raises OSError, or an error in MALFORMED."""
    files = [Path(path).expanduser() for path in paths.split(SEPARATOR) if path]
    there = [file for file in files if file.exists()] or files[:1]
    return [
        KubeconfigFile(str(file), yaml.safe_load(file.read_text(encoding="utf-8")))
        for file in there
    ]


def _token_file(selected: SelectedContext) -> Path | None:
    """Return the token file of the user, or None. Its path is relative to its kubeconfig."""
    name = selected.user.get("tokenFile")
    return Path(selected.user_file).absolute().parent / name if name else None


def _check_plugin(user: Mapping[str, Any], configuration: Any) -> None:
    """Raise if a credential plugin failed. The library only logs it and continues as anonymous."""
    plugin = user.get("exec")
    if plugin and not configuration.api_key.get("BearerToken") and not configuration.cert_file:
        raise ValueError(f"its plugin {plugin.get('command')} gave neither token nor certificate")


_LOGINS = ("gcp", "oidc")
"""Auth providers that the client library supports. kubectl no longer has any."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Options with the kubeconfig that was found, and the namespace that it selects.

    `kubeconfig` is empty in a pod without a kubeconfig.
    """

    options: KubeconfigOptions
    namespace: str


def find_caller(options: KubeconfigOptions, environment: Mapping[str, str]) -> Caller:
    """Return the caller: from `--kubeconfig`, KUBECONFIG, ~/.kube/config or the service account.

    Raises InvalidSettings.
    """
    paths = options.kubeconfig or _usual_paths(environment)
    try:
        if not paths:
            with_impersonation({}, options)
            namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
            return Caller(options, namespace)
        selected = select_context(_read(paths), options)
    except FileNotFoundError as error:
        raise InvalidSettings(
            f"There is no kubeconfig {paths}; name another by --kubeconfig or KUBECONFIG."
        ) from error
    except (OSError, *MALFORMED) as error:
        raise unusable_error(paths, error) from error
    _check_auth_provider(paths, selected.user)
    return Caller(replace(options, kubeconfig=paths), selected.namespace)


def _usual_paths(environment: Mapping[str, str]) -> str:
    if named := environment.get("KUBECONFIG", ""):
        return named
    usual = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    if not usual.exists() and SERVICE_ACCOUNT.exists() and "KUBERNETES_SERVICE_HOST" in environment:
        return ""
    return str(usual)


def _check_auth_provider(paths: str, user: Mapping[str, object]) -> None:
    provider = user.get("auth-provider")
    name = provider.get("name") if isinstance(provider, Mapping) else None
    if name is not None and name not in _LOGINS:
        raise InvalidSettings(
            f"The current user of {paths} logs in by the auth-provider {name}, which neither "
            "Fairgate nor kubectl supports any more; use a plugin (exec) or a token."
        )
