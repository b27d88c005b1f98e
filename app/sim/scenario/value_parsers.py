"""Parsers of single values in scenario files and options: text in, value out.

A parser raises InvalidInput with the problem and the remedy. The caller adds the position.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from enum import Enum
from fractions import Fraction
from typing import TypeVar

from app.core import durations
from app.core.errors import InvalidInput, InvalidQuantity
from app.core.model import Millis, TopologyConstraint
from app.core.podspec.annotations import is_label, named_topology
from app.core.quantities import CPU, MAX_AMOUNT, parse_amount, parse_quantity
from app.core.well_known import ANNOTATION_TOPOLOGY

Word = TypeVar("Word", bound=Enum)

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?:\d{1,15}(?:\.\d{1,9})?(?:d|h|ms|m|s))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s)", re.ASCII)
_DECIMAL = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_RESOURCE = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_DIVISIBLE = ("memory", "ephemeral-storage", "hugepages-")
LONGEST_NAME = 253


def duration(text: str) -> Millis:
    """Read a duration, such as 90s or 1h30m; it must be whole milliseconds."""
    if re.fullmatch(r"0+", text):
        return Millis(0)
    _refuse_negative(text)
    if re.fullmatch(r"[\d.]+", text, re.ASCII):
        raise InvalidInput(f"{_quote(text)} has no unit; write {text[:20]}s, {text[:20]}m or so.")
    units = [unit for _, unit in _PART.findall(text)]
    if not _DURATION.fullmatch(text) or units != sorted(set(units), key=list(_UNITS).index):
        raise InvalidInput(f"{_quote(text)} is no length of time; write 90s, 5m, 4h, 2d or 1h30m.")
    total = sum((Fraction(n) * _UNITS[unit] for n, unit in _PART.findall(text)), Fraction(0))
    if total.denominator != 1:
        raise InvalidInput(f"{_quote(text)} is finer than a millisecond; write whole ones.")
    return Millis(int(total))


def cluster_time(text: str) -> Millis:
    """Read a duration as in a Policy or on a pod: 90s, 5m, 1h30m."""
    _refuse_negative(text)
    try:
        return durations.parse_duration(text)
    except InvalidInput as error:
        raise InvalidInput(
            f"{_quote(text)} is no length of time to a cluster; write hours, minutes and seconds, "
            "as in 90s, 5m or 1h30m."
        ) from error


def positive_cluster_time(text: str) -> Millis:
    """Read a duration as in a Policy, greater than 0."""
    length = cluster_time(text)
    if length == 0:
        raise InvalidInput(f"{_quote(text)} is no time at all; write 1s or more.")
    return length


def decimal(text: str) -> Fraction:
    """Read a decimal number of 0 or more, exactly."""
    _refuse_negative(text)
    # Checked first: Fraction also accepts exponents, and a large one could fill all memory.
    if not _DECIMAL.fullmatch(text):
        raise InvalidInput(f"{_quote(text)} is no decimal number; write one such as 2 or 0.5.")
    return Fraction(text)


def positive(text: str) -> Fraction:
    """Read a decimal number greater than 0."""
    number = decimal(text)
    if not number:
        raise InvalidInput("0 is not valid here; use a number greater than 0.")
    return number


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a reader of a whole number within bounds."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise InvalidInput(f"{_quote(text)} is no whole number; write one such as {least}.")
        number = int(text)
        if number < least:
            what = "is negative" if number < 0 <= least else "is too small"
            raise InvalidInput(f"{number} {what}; write {least} or more.")
        if number > most:
            raise InvalidInput(f"{number} is too large; write {most} at most.")
        return number

    return read


def switch(text: str) -> bool:
    """Read yes or no, as YAML writes them."""
    word = text.lower()
    if word not in ("true", "false", "yes", "no", "on", "off"):
        raise InvalidInput(f"{_quote(text)} is neither true nor false; write one of them.")
    return word in ("true", "yes", "on")


def choice(kind: type[Word]) -> Callable[[str], Word]:
    """Return a reader of one of a few words."""

    def read(text: str) -> Word:
        for word in kind:
            if text == word.value:
                return word
        words = [str(word.value) for word in kind]
        raise InvalidInput(
            f"{_quote(text)} is not valid; use {', '.join(words[:-1])} or {words[-1]}"
            f"{did_you_mean(text, words)}."
        )

    return read


def name(text: str) -> str:
    """Read a name: plain printable text."""
    if not text.strip() or text != text.strip():
        raise InvalidInput(f"{_quote(text)} is no name; write one without blanks around it.")
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise InvalidInput(
            f"{_quote(text)} is no name; write {LONGEST_NAME} plain characters at most."
        )
    return text


def resource(text: str) -> str:
    """Read the name of a resource."""
    if not _RESOURCE.fullmatch(text):
        raise InvalidInput(f"{_quote(text)} is no resource; write one such as nvidia.com/gpu.")
    return text


def label(text: str) -> str:
    """Read the key of a label."""
    if not is_label(text):
        raise InvalidInput(f"{_quote(text)} is no label; write one such as example.com/rack.")
    return text


def level(text: str) -> TopologyConstraint:
    """Read the topology level of a gang, as in the annotation of a pod."""
    near = named_topology({ANNOTATION_TOPOLOGY: text})
    if near is None:
        raise InvalidInput(
            f"{_quote(text)} is no level; write required:LABEL or preferred:LABEL, such as "
            "required:example.com/rack."
        )
    return near


def pattern(text: str) -> str:
    """Read the name of a resource, or a prefix that ends with `*`."""
    if not _RESOURCE.fullmatch(re.sub(r"\*$", "x", text)):
        raise InvalidInput(f"{_quote(text)} is no resource; write one such as nvidia.com/gpu.")
    return text


def quantity(of: str) -> Callable[[str], int]:
    """Return a reader of an amount of a resource, in base units. Devices are whole."""

    def read(text: str) -> int:
        try:
            exact = parse_quantity(text)
        except InvalidQuantity as error:
            raise InvalidInput(f"{_quote(text)} is no amount; write 2, 500m or 4Gi.") from error
        if exact < 0:
            raise InvalidInput(f"{text} is negative; write 0 or more.")
        if exact.denominator != 1 and of != CPU and not of.startswith(_DIVISIBLE):
            raise InvalidInput(f"{text} is not whole; {of} cannot be divided: write 1, 2 or so.")
        most = MAX_AMOUNT // 1000 if of == CPU else MAX_AMOUNT
        if exact > most:
            raise InvalidInput(f"{text[:60]} is too large; write {most} at most.")
        return parse_amount(of, text)

    return read


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return ` (did you mean X?)`; empty string if no known word is similar."""
    near = get_close_matches(text, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _refuse_negative(text: str) -> None:
    if re.match(r"-\.?\d", text):
        raise InvalidInput(f"{text[:40]} is negative; write 0 or more.")


def _quote(text: str) -> str:
    return repr(text[:60])
