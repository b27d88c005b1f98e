"""The objects that a values file of the chart names: Secrets and a PriorityClass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TLS_KEYS = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A Secret that a value names, with the keys that it must have."""

    value: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """The Secrets in a values file, and the PriorityClass of Fairgate's pods."""

    secrets: tuple[NamedSecret, ...]
    priority_class: str


def named_objects(values: Mapping[str, Any]) -> NamedObjects:
    """Return the Secrets and the PriorityClass in a values file.

    Raises TypeError, KeyError or AttributeError for a wrong form.
    """
    redis, tls = values.get("redis") or {}, values.get("tls") or {}
    client_ca = tls.get("clientCA") or {}
    found = [
        NamedSecret(
            "redis.existingSecret",
            redis.get("existingSecret") or "",
            (redis.get("secretKey") or "url",),
        ),
        NamedSecret("redis.filesSecret", redis.get("filesSecret") or ""),
        NamedSecret("tls.existingSecret", tls.get("existingSecret") or "", TLS_KEYS),
        NamedSecret(
            "tls.clientCA.existingSecret",
            client_ca.get("existingSecret") or "",
            (client_ca.get("key") or "ca.crt",),
        ),
        *(
            NamedSecret("imagePullSecrets", each["name"])
            for each in values.get("imagePullSecrets") or ()
        ),
    ]
    secrets = tuple(each for each in found if each.name)
    for each in secrets:
        if not all(isinstance(text, str) for text in (each.name, *each.keys)):
            raise TypeError(f"{each.value} or its key is no text")
    return NamedObjects(secrets, str(values.get("priorityClassName") or ""))
