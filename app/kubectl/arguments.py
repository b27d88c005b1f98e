"""Parses command line values into the form of the API: times, weights, pod names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from app.core.errors import InvalidInput

_AGO = re.compile(r"(?=.)((?P<days>\d{1,4})d)?((?P<hours>\d{1,5})h)?((?P<minutes>\d{1,6})m)?")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_LEGAL = "legal are 0 and greater decimals such as 2 or 0.5, with up to 12 digits and 6 decimals"


def time(text: str, now: datetime) -> str:
    """Return a UTC time. `text`: ISO 8601, or a duration before `now` such as 2h or 1d12h.

    A time without a zone is local time, as in the tables. Raises InvalidInput.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        parts = {unit: int(value or 0) for unit, value in ago.groupdict().items()}
        at = (now - timedelta(**parts)).astimezone(timezone.utc)
    else:
        try:
            at = datetime.fromisoformat(re.sub("Z$", "+00:00", text))  # 3.10 knows no Z
            at = at.astimezone(timezone.utc)
        except (ValueError, OverflowError) as error:
            raise InvalidInput(
                f"{text[:40]!r} is not a time; write 2026-01-31T08:00:00Z, or 2h for two hours ago."
            ) from error
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")  # %Y does not pad a year


def by(text: str) -> list[str]:
    """Return the keys by which usage is summed, without duplicates. Raises InvalidInput."""
    names = [each.strip() for each in text.split(",")]
    known = ("tenant", "user", "pool", "node", "workload")
    for each in names:
        if each not in known:
            raise InvalidInput(f"--by {each}: usage is summed by {', '.join(known)}.")
    return list(dict.fromkeys(names))


def tenant_weights(written: Sequence[str]) -> dict[str, str]:
    """Return weights of tenants: team-a=3. Raises InvalidInput."""
    return dict(_weight("--weight", each, "team-a=3") for each in written)


def user_weights(written: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return weights of users by tenant: team-a/alice=2. Raises InvalidInput."""
    found: dict[str, dict[str, str]] = {}
    for each in written:
        name, number = _weight("--user", each, "team-a/alice=2")
        tenant, slash, user = name.partition("/")
        if not (tenant and slash and user):
            raise InvalidInput(f"--user {each} names no tenant; write --user team-a/alice=2.")
        found.setdefault(tenant, {})[user] = number
    return found


def weight(text: str, tenant: str, user: str | None) -> str:
    """Return the text if it is a weight of a tenant or of its user. Raises InvalidInput."""
    if not _DECIMAL.fullmatch(text):
        whom = f"{tenant} --user {shlex.quote(user)}" if user is not None else tenant
        raise InvalidInput(
            f"{text[:40]!r} is not a weight: {_LEGAL}; write kubectl fairgate weights set {whom} 2."
        )
    return text


def pod(text: str) -> str:
    """Return the name of a pod, given as NAME or pod/NAME. Raises InvalidInput."""
    kind, slash, name = text.partition("/")
    if not slash:
        return text
    if kind not in ("po", "pod", "pods") or not name:
        raise InvalidInput(f"{text} is not a pod; write its name, and its namespace by -n.")
    return name


def _weight(flag: str, text: str, example: str) -> tuple[str, str]:
    name, equals, number = text.rpartition("=")
    if not (equals and name and _DECIMAL.fullmatch(number)):
        raise InvalidInput(f"{flag} {text} is not a weight: {_LEGAL}; write {flag} {example}.")
    return name, number
