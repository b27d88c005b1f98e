"""The objects that a values file of the chart names: Secrets, a PriorityClass and a Redis."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAME = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A name of an object: https://kubernetes.io/docs/concepts/overview/working-with-objects/names"""

TLS_KEYS = ("tls.crt", "tls.key", "ca.crt")


@dataclass(frozen=True, slots=True)
class ReferencedSecret:
    """A Secret that a value names, with the keys that it must have."""

    values_key: str
    name: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReferencedObjects:
    """The Secrets in a values file, the PriorityClass of Fairgate's pods, and the Redis.

    `has_redis`: the file names a Redis in some way. `redis_url` is "" if a Secret has the URL.
    """

    secrets: tuple[ReferencedSecret, ...]
    priority_class: str
    has_redis: bool = True
    redis_url: str = ""


def referenced_objects(values: Mapping[str, Any]) -> ReferencedObjects:
    """Return the Secrets and the PriorityClass in a values file.

    Raises TypeError, ValueError, KeyError or AttributeError for a wrong form.
    """
    redis, tls = values.get("redis") or {}, values.get("tls") or {}
    client_ca = tls.get("clientCA") or {}
    found = [
        ReferencedSecret(
            "redis.existingSecret",
            redis.get("existingSecret") or "",
            (redis.get("secretKey") or "url",),
        ),
        ReferencedSecret("redis.filesSecret", redis.get("filesSecret") or ""),
        ReferencedSecret("tls.existingSecret", tls.get("existingSecret") or "", TLS_KEYS),
        ReferencedSecret(
            "tls.clientCA.existingSecret",
            client_ca.get("existingSecret") or "",
            (client_ca.get("key") or "ca.crt",),
        ),
        *(
            ReferencedSecret("imagePullSecrets", each["name"])
            for each in values.get("imagePullSecrets") or ()
        ),
    ]
    secrets = tuple(each for each in found if each.name)
    for each in secrets:
        if not all(isinstance(text, str) for text in (each.name, *each.keys)):
            raise TypeError(f"{each.values_key} or its key is no text")
        if not NAME.fullmatch(each.name):
            raise ValueError(f"{each.values_key} is not the name of a Secret: {each.name[:80]!r}")
    url = redis.get("url") or ""
    is_bundled = (redis.get("bundled") or {}).get("enabled") is True
    return ReferencedObjects(
        secrets,
        str(values.get("priorityClassName") or ""),
        has_redis=bool(url or redis.get("existingSecret") or is_bundled),
        redis_url=str(url),
    )
