"""Whose credentials a command line uses, found as kubectl finds them.

Reads files and variables only. What kubectl can and we cannot is refused here, in a sentence:
to act as somebody else than was meant would be worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import InvalidSettings
from app.kube import identity

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LOGINS = ("gcp", "oidc")
"""Auth providers that the client library understands; kubectl itself dropped them all."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The kubeconfig to use, None in a pod without one, and the namespace that is meant."""

    kubeconfig: Path | None
    namespace: str


def find(kubeconfig: Path | None, environment: Mapping[str, str]) -> Caller:
    """Return who calls: by `--kubeconfig`, KUBECONFIG, ~/.kube/config, or the pod we run in.

    Raises InvalidSettings.
    """
    file = kubeconfig or _from(environment)
    if file is None:
        return Caller(None, _ACCOUNT.read_text(encoding="utf-8").strip())
    try:
        user, namespace = identity.current(file)
    except FileNotFoundError as error:
        raise InvalidSettings(
            f"There is no kubeconfig {file}; name another by --kubeconfig or KUBECONFIG."
        ) from error
    except (OSError, *identity.MALFORMED) as error:
        raise identity.unusable(file, error) from error
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
    if not usual.exists() and _ACCOUNT.exists() and "KUBERNETES_SERVICE_HOST" in environment:
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
