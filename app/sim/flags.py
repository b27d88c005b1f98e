"""Values of the options of `replay` given as text: instants of a log, and fields of the Policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.policy import Policy
from app.sim import readers
from app.sim.policy_fields import FIELDS

Value = TypeVar("Value")

SECOND = 1_000
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,3})?", re.ASCII)


def option(flag: str, written: str, reader: Callable[[str], Value]) -> Value:
    """Return what was written after a flag. Raises InvalidInput, naming the flag."""
    try:
        return reader(written)
    except InvalidInput as error:
        raise InvalidInput(f"{flag}: {error}") from error


def seconds(written: str) -> Millis:
    """Read a number of seconds, as the logs count them, or a length of time such as 48h."""
    if _SECONDS.fullmatch(written):
        return Millis(int(Fraction(written) * SECOND))
    return readers.duration(written)


def policy_with(settings: Iterable[str]) -> Policy:
    """Return the live defaults with `field=value` pairs applied; `policy.` before is optional.

    Raises InvalidInput.
    """
    values: dict[str, Any] = {}
    for pair in settings:
        name, equals, written = pair.partition("=")
        field = name.strip().removeprefix("policy.")
        if not equals:
            raise InvalidInput(f"--set {pair}: there is no value; write it as in history=1.")
        if field not in FIELDS:
            near = readers.nearest(field, FIELDS)
            raise InvalidInput(
                f"--set {pair}: the policy has no field {field}{near}; "
                f"choose one of {', '.join(FIELDS)}."
            )
        attribute, reader = FIELDS[field]
        if attribute in values:
            raise InvalidInput(f"--set {pair}: {field} is set twice; set it once.")
        values[attribute] = option(f"--set {pair}", written.strip(), reader)
    return replace(Policy(), **values)
