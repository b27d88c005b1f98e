"""Parsers for options of `replay`: instants of a log, and fields of the Policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from app.core.errors import InvalidInput
from app.core.model import Millis
from app.core.policy import Policy
from app.sim.scenario import value_parsers
from app.sim.scenario.policy_fields import FIELDS

Value = TypeVar("Value")

SECOND = 1_000
_SECONDS = re.compile(r"\d{1,12}(\.\d{1,3})?", re.ASCII)


def option(flag: str, written: str, reader: Callable[[str], Value]) -> Value:
    """Return the parsed value of a flag. Raises InvalidInput, naming the flag."""
    try:
        return reader(written)
    except InvalidInput as error:
        raise InvalidInput(f"{flag}: {error}") from error


def seconds(written: str) -> Millis:
    """Read a number of seconds, as in the logs, or a duration such as 48h."""
    if _SECONDS.fullmatch(written):
        return Millis(int(Fraction(written) * SECOND))
    return value_parsers.duration(written)


def policy_with(settings: Iterable[str]) -> Policy:
    """Return the default Policy with `field=value` pairs applied. Raises InvalidInput.

    The prefix `policy.` of a field is optional.
    """
    values: dict[str, Any] = {}
    for pair in settings:
        name, equals, written = pair.partition("=")
        field = name.strip().removeprefix("policy.")
        if not equals:
            raise InvalidInput(f"--set {pair}: there is no value; write it as in history=1.")
        if field not in FIELDS:
            near = value_parsers.did_you_mean(field, FIELDS)
            raise InvalidInput(
                f"--set {pair}: the policy has no field {field}{near}; "
                f"choose one of {', '.join(FIELDS)}."
            )
        attribute, reader = FIELDS[field]
        if attribute in values:
            raise InvalidInput(f"--set {pair}: {field} is set twice; set it once.")
        values[attribute] = option(f"--set {pair}", written.strip(), reader)
    return replace(Policy(), **values)
