"""Selects the context, user and impersonation of parsed kubeconfigs, as kubectl does.

Commands of the server and the kubectl plugin read the files, and share these rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.errors import InvalidSettings

SEPARATOR = ":"
"""Separates the files that KUBECONFIG lists."""


@dataclass(frozen=True, slots=True)
class KubeconfigOptions:
    """The options by which a command selects a cluster and a user. Empty: as kubectl without them.

    `kubeconfig`: a file, or several as in KUBECONFIG. `as_user` and `as_groups` replace those of
    the kubeconfig.
    """

    kubeconfig: str = ""
    context: str = ""
    as_user: str = ""
    as_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KubeconfigFile:
    """A kubeconfig, parsed from YAML, and its path."""

    path: str
    content: Any


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """A context, "" if no file names one. `user` is the user entry, `user_file` its file.

    The user entry has the impersonation of the options.
    """

    name: str
    namespace: str
    user: Mapping[str, Any]
    user_file: str


def select_context(files: Sequence[KubeconfigFile], options: KubeconfigOptions) -> SelectedContext:
    """Return the context of the options, or the current one.

    If several files have an entry of one name, the first one counts. The first `current-context`
    counts. Raises ValueError, TypeError, KeyError or AttributeError for malformed files.
    Raises InvalidSettings: see `with_impersonation`.
    """
    for file in files:
        if not isinstance(file.content, dict):
            raise ValueError(f"{file.path} holds no configuration")
    named = (file.content.get("current-context") for file in files)
    name = options.context or next((each for each in named if each), "")
    entry, _ = _entry(files, "contexts", name)
    if options.context and not entry:
        raise ValueError(f"it has no context {name!r}")
    chosen = entry.get("context", {})
    found, user_file = _entry(files, "users", chosen.get("user"))
    namespace = str(chosen.get("namespace") or "default")
    return SelectedContext(
        name, namespace, with_impersonation(found.get("user") or {}, options), user_file
    )


def with_impersonation(user: Mapping[str, Any], options: KubeconfigOptions) -> dict[str, Any]:
    """Return a user entry with the impersonation of the options.

    Groups need a user. Raises InvalidSettings for those of the options, else ValueError.
    """
    changed = dict(user)
    if options.as_user:
        changed["as"] = options.as_user
    if options.as_groups:
        changed["as-groups"] = list(options.as_groups)
    if changed.get("as-groups") and not changed.get("as"):
        if options.as_groups:
            raise InvalidSettings("--as-group needs a user to act as: add --as USER.")
        raise ValueError("groups are impersonated only together with a user: add --as USER")
    return changed


def impersonation_headers(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the request headers by which a user entry acts as another user; often none.

    https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
    """
    headers = [("Impersonate-User", user.get("as")), ("Impersonate-Uid", user.get("as-uid"))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    for name, values in (user.get("as-user-extra") or {}).items():
        headers += [(f"Impersonate-Extra-{_escaped(name)}", value) for value in values]
    return [(name, str(value)) for name, value in headers if value]


def _escaped(key: str) -> str:
    """Percent-encode the characters that a header name may not have."""
    return re.sub(r"[^\w.~-]", lambda found: _percent(found[0]), key, flags=re.ASCII)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _entry(
    files: Sequence[KubeconfigFile], section: str, name: str | None
) -> tuple[dict[str, Any], str]:
    for file in files:
        for entry in file.content.get(section) or ():
            if entry.get("name") == name:
                return dict(entry), file.path
    return {}, ""
