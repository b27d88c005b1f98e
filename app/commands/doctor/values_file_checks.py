"""Checks of a values file of the chart: the objects that it names exist."""

from __future__ import annotations

from collections.abc import Iterator

from app.commands.doctor.findings import Check, Finding, ok, problem
from app.commands.doctor.referenced_objects import ReferencedObjects
from app.commands.doctor.snapshot import ClusterSnapshot
from app.config.setting_parsers import redis_url
from app.core.errors import InvalidInput
from app.store.redis_url import host_names


def check_values_file(seen: ClusterSnapshot, namespace: str) -> Iterator[Finding]:
    """Check what the values file names, if there is one. `namespace` is that of Fairgate."""
    planned = seen.assumptions.references
    if planned is None:
        return
    yield from _redis(planned)
    missing = False
    for secret in dict.fromkeys(planned.secrets if seen.is_known("secrets") else ()):
        keys = seen.secrets.get(secret.name)
        what = f"Secret {secret.name} in namespace {namespace}"
        if keys is None:
            message = f"{secret.values_key} names {what}, which does not exist."
            remedy = f"Create it in namespace {namespace}; Fairgate's pods need it to start."
        elif lacking := [key for key in secret.keys if key not in keys]:
            message = f"{what} lacks {', '.join(lacking)}, which {secret.values_key} needs."
            remedy = "Add what it lacks to the Secret; Fairgate's pods need it to start."
        else:
            continue
        missing = True
        yield problem(Check.COMPONENTS, message, remedy, [f"Secret {secret.name}"])
    name = planned.priority_class
    if name and name not in seen.classes and seen.is_known("priorityclasses"):
        missing = True
        yield problem(
            Check.COMPONENTS,
            f"priorityClassName names PriorityClass {name}, which does not exist.",
            "Create it, or leave the value out.",
            [f"PriorityClass {name}"],
        )
    if not missing and planned.secrets and seen.is_known("secrets", "priorityclasses"):
        yield ok(Check.COMPONENTS, "all Secrets that the values file names exist.")


def _redis(planned: ReferencedObjects) -> Iterator[Finding]:
    if not planned.has_redis:
        yield problem(
            Check.REDIS,
            "the values file names no Redis, without which no pod is ever released.",
            "Set redis.url or redis.existingSecret, or redis.bundled.enabled for a trial.",
        )
    if not planned.redis_url:
        return
    try:
        host = host_names(redis_url(planned.redis_url))
    except InvalidInput as error:
        yield problem(Check.REDIS, f"redis.url of the values file: {error}", "Correct the URL.")
    else:
        yield ok(Check.REDIS, f"the values file names {host}; --redis-url tests an address.")
