"""Selects the context, user and impersonation of parsed kubeconfigs, as kubectl does.

Commands of the server and the kubectl plugin read the files, and share these rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEPARATOR = ":"
"""Separates the files that KUBECONFIG lists."""


@dataclass(frozen=True, slots=True)
class KubeconfigFile:
    """A kubeconfig, parsed from YAML, and its path."""

    path: str
    content: Any


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """A context, "" if no file names one. `user` is the user entry, `user_file` its file."""

    name: str
    namespace: str
    user: Mapping[str, Any]
    user_file: str


def select(files: Sequence[KubeconfigFile], context: str = "") -> SelectedContext:
    """Return the context `context`, or the current one if empty.

    If several files have an entry of one name, the first one counts. The first `current-context`
    counts. Raises ValueError, TypeError, KeyError or AttributeError for malformed files.
    """
    for file in files:
        if not isinstance(file.content, dict):
            raise ValueError(f"{file.path} holds no configuration")
    named = (file.content.get("current-context") for file in files)
    name = context or next((each for each in named if each), "")
    entry, _ = _entry(files, "contexts", name)
    if context and not entry:
        raise ValueError(f"it has no context {context!r}")
    chosen = entry.get("context", {})
    found, user_file = _entry(files, "users", chosen.get("user"))
    namespace = str(chosen.get("namespace") or "default")
    return SelectedContext(name, namespace, dict(found.get("user") or {}), user_file)


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
