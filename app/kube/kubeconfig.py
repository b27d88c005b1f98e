"""Finds the kubeconfig of a command, and loads the credentials of a kubeconfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.core.errors import InvalidSettings
from app.kube.credentials import SERVICE_ACCOUNT, ApiServer, Token, proxy_for

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)
"""Errors that the library raises for a file that is not a valid kubeconfig."""


async def load(kubeconfig: str | Path, context: str = "") -> ApiServer:
    """Return the API server of a kubeconfig, with the credentials in it. Raises InvalidSettings.

    `context`: "" for the current one.
    """
    # Imported here: the library takes 13 MB and 0.2 s of CPU, and pods do without it.
    from kubernetes.aio.client import Configuration
    from kubernetes.aio.client.rest import RESTClientObject
    from kubernetes.aio.config import ConfigException, load_kube_config

    file = Path(kubeconfig)
    configuration = Configuration()
    try:
        user, _ = current(file, context)
        await load_kube_config(
            config_file=str(file),
            context=context or None,
            client_configuration=configuration,
            persist_config=False,
        )
        _check_plugin(user, configuration)
        token = Token(configuration.api_key.get("BearerToken", "").strip(), _token_file(file, user))
        token.value()
        tls = RESTClientObject(configuration).ssl_context
    except (ConfigException, OSError, *MALFORMED) as error:
        raise unusable(file, error) from error
    proxy = configuration.proxy or proxy_for(configuration.host)
    return ApiServer(configuration.host, tls, token, proxy, configuration.tls_server_name)


def unusable(kubeconfig: Path, error: Exception) -> InvalidSettings:
    """Return the error for a kubeconfig that cannot be used."""
    return InvalidSettings(
        f"The kubeconfig {kubeconfig} cannot be used: {error}. Check the file and the files that "
        "it names."
    )


def current(kubeconfig: Path, name: str = "") -> tuple[dict[str, Any], str]:
    """Return user and namespace of a context of a kubeconfig, as written there.

    `name`: the context, "" for the current one.

    Raises OSError, or an error in MALFORMED.
    """
    written = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
    if not isinstance(written, dict):
        raise ValueError("it holds no configuration")
    entry = _named(written, "contexts", name or written.get("current-context"))
    if name and not entry:
        raise ValueError(f"it has no context {name!r}")
    context = entry.get("context", {})
    user = _named(written, "users", context.get("user")).get("user") or {}
    return dict(user), str(context.get("namespace") or "default")


def _token_file(kubeconfig: Path, user: dict[str, Any]) -> Path | None:
    """Return the token file of a user, or None."""
    name = user.get("tokenFile")
    return kubeconfig.absolute().parent / name if name else None


def _check_plugin(user: dict[str, Any], configuration: Any) -> None:
    """Raise if a credential plugin failed. The library only logs it and continues as anonymous."""
    plugin = user.get("exec")
    if plugin and not configuration.api_key.get("BearerToken") and not configuration.cert_file:
        raise ValueError(f"its plugin {plugin.get('command')} gave neither token nor certificate")


def _named(config: dict[str, Any], section: str, name: str | None) -> dict[str, Any]:
    for entry in config.get(section) or ():
        if entry.get("name") == name:
            return dict(entry)
    return {}


_LOGINS = ("gcp", "oidc")
"""Auth providers that the client library supports. kubectl no longer has any."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The kubeconfig, or None in a pod without one, and the selected namespace."""

    kubeconfig: Path | None
    namespace: str


def find(kubeconfig: Path | None, environment: Mapping[str, str], context: str = "") -> Caller:
    """Return the caller: from `--kubeconfig`, KUBECONFIG, ~/.kube/config or the service account.

    `context`: "" for the current one. Raises InvalidSettings.
    """
    file = kubeconfig or _from(environment)
    if file is None:
        return Caller(None, (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip())
    try:
        user, namespace = current(file, context)
    except FileNotFoundError as error:
        raise InvalidSettings(
            f"There is no kubeconfig {file}; name another by --kubeconfig or KUBECONFIG."
        ) from error
    except (OSError, *MALFORMED) as error:
        raise unusable(file, error) from error
    _check(file, user)
    return Caller(file, namespace)


def _from(environment: Mapping[str, str]) -> Path | None:
    named = [
        Path(each).expanduser() for each in environment.get("KUBECONFIG", "").split(":") if each
    ]
    there = [each for each in named if each.exists()]
    if len(there) > 1:
        raise InvalidSettings(
            "KUBECONFIG names several files, and Fairgate reads one; merge them "
            "(kubectl config view --flatten > FILE) and name that by --kubeconfig."
        )
    if there or named:
        return (there or named)[0]
    usual = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    if not usual.exists() and SERVICE_ACCOUNT.exists() and "KUBERNETES_SERVICE_HOST" in environment:
        return None
    return usual


def _check(file: Path, user: Mapping[str, object]) -> None:
    for key in ("as", "as-groups", "as-uid", "as-user-extra"):
        if user.get(key):
            raise InvalidSettings(
                f"The current user of {file} impersonates another ({key}), which Fairgate does "
                "not do; use a kubeconfig with the other's own credentials."
            )
    provider = user.get("auth-provider")
    name = provider.get("name") if isinstance(provider, Mapping) else None
    if name is not None and name not in _LOGINS:
        raise InvalidSettings(
            f"The current user of {file} logs in by the auth-provider {name}, which neither "
            "Fairgate nor kubectl supports any more; use a plugin (exec) or a token."
        )
