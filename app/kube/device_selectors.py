"""Evaluates CEL selectors of devices, as kube-scheduler does, with the CEL library of its authors.

Answers are cached by the expression and by those attributes of a device that the expression names,
because devices of a kind differ in attributes such as `uuid`. The library (14 MB) is loaded for
the first expression only.

Cluster admins write the expressions of classes. Users write those of claims, so the time for these
is bounded: see `_is_costly` and `_TimeBudget`. A device may match an expression that is not
evaluated.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from app.core.errors import InvalidQuantity
from app.core.podspec.devices import Attribute, Device
from app.core.quantities import CPU, parse_amount

log = logging.getLogger("fairgate.kube")

MOST_ANSWERS = 20_000
"""Maximum number of cached answers."""
MOST_PROGRAMS = 1_000
"""Maximum number of compiled expressions. Users write expressions in claims."""
MAX_EXPRESSION_BYTES = 10 * 1024
"""Longest expression in bytes. The API server accepts no longer one."""
MAX_USER_EXPRESSION = 2_000
"""Longest expression of a user that is evaluated, in characters."""
BURST_S = 0.5
"""Most seconds of CPU for expressions of users at once."""
SHARE = 0.1
"""Largest share of a CPU for expressions of users over a longer time."""

_DOMAIN = re.compile(r"""(?:attributes|capacity)\s*\[\s*(?:"([^"\\]*)"|'([^'\\]*)')\s*\]""")
_OPEN = re.compile(r"\b(exists|exists_one|all|map|filter|size|join|format|replace|substring)\b|\+")
"""An expression with such a word may read attributes that it does not name."""
_CALL = re.compile(r"(\w+)\s*\(")
_CHEAP = re.compile(
    "has|in|or|bind|value|hasValue|orValue|matches|startsWith|endsWith|contains|size|lowerAscii|"
    "upperAscii|string|int|double|dyn|type|of|none|quantity|semver|compareTo|isLessThan|"
    "isGreaterThan|major|minor|patch"
)
"""Functions whose time is that of their arguments, and whose values are no longer than these. A
word before a parenthesis counts as a function."""
_LITERAL = r"""(?:"[\w./-]*"|'[\w./-]*'|-?\d+)"""
_LITERALS = re.compile(rf"\[\s*\??{_LITERAL}(?:\s*,\s*{_LITERAL})*\s*\]")
"""A list of literals, or the access to an entry of a map by its name. It has no bound value."""
_LARGE = re.compile(r"\{|\\[pPxXuU0-9]")
"""A repetition or a class of characters in a regular expression, or an escape that may hide it."""
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+.*)?")

QUANTITY, SEMVER = "quantity", "semver"
"""Keys of the maps that represent a quantity, in thousandths, and a version."""

Answer = bool | None


class DeviceSelectors:
    """Implements `podspec.devices.SelectorEvaluator`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._environment: Any = None
        self._programs: OrderedDict[str, _Program] = OrderedDict()
        self._answers: OrderedDict[tuple[int, str, tuple[Attribute, ...]], Answer] = OrderedDict()
        self._compiled = 0
        self._budget = _TimeBudget(clock, cpu_clock)

    @property
    def answers(self) -> int:
        """The number of cached answers."""
        return len(self._answers)

    def matches(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return whether a device matches. None: the expression cannot be evaluated.

        As in kube-scheduler, no device matches if the expression reads an attribute that the
        device does not have.
        """
        program = self._program(expression)
        key = (program.number, f"{driver}/{device.is_shared}", program.attributes_read(device))
        if key in self._answers:
            self._answers.move_to_end(key)
            return self._answers[key]
        answer = self._answers[key] = program.evaluate(driver, device)
        if len(self._answers) > MOST_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def matches_of_user(self, expression: str, driver: str, device: Device) -> bool | None:
        """Return the same for an expression of a user. None also if it costs too much time."""
        if _is_costly(expression) or not self._budget.has_left():
            return None
        with self._budget:
            return self.matches(expression, driver, device)

    def _program(self, expression: str) -> _Program:
        program = self._programs.get(expression)
        if program is None:
            self._compiled += 1
            compiled = self._compile(expression)
            program = self._programs[expression] = _Program(self._compiled, expression, compiled)
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(expression)
        return program

    def _compile(self, expression: str) -> Any:
        """Return the compiled expression, or None if this library cannot compile it."""
        if len(expression) > MAX_EXPRESSION_BYTES:
            return None
        if self._environment is None:
            self._environment = _new_environment()
        try:
            return self._environment.compile(expression)
        except RuntimeError as error:
            facts = {"expression": expression[:200], "why": str(error)[:200]}
            log.warning("device selector not evaluated: every device may match", extra=facts)
            return None


class _Program:
    """A compiled expression, and the attributes that it reads.

    Answers are stored by `number`, so that they do not keep the texts of former programs.
    """

    def __init__(self, number: int, expression: str, compiled: Any) -> None:
        self.number = number
        self._compiled = compiled
        self._domains = [double or single for double, single in _DOMAIN.findall(expression)]
        self._reads_all = bool(_OPEN.search(expression))
        self._text = expression

    def attributes_read(self, device: Device) -> tuple[Attribute, ...]:
        """Return the attributes of a device that decide the answer."""
        if self._reads_all:
            return device.facts
        return tuple([fact for fact in device.facts if fact.name in self._text])

    def evaluate(self, driver: str, device: Device) -> Answer:
        """Return whether a device matches; None if the library cannot evaluate the expression.

        The library raises several kinds of errors, and users write expressions: one that is not
        expected here would end the leader, and each next one.
        """
        if self._compiled is None:
            return None
        try:
            answer = self._compiled.eval(data={"device": self._fields(driver, device)})
        except Exception:  # such as more than 10 000 iterations, or a number beyond 64 bits
            return None
        # Any other value is an error, such as an attribute that the device does not have.
        with contextlib.suppress(Exception):  # an optional, for instance, has no plain value
            return answer.plain_value() is True
        return False

    def _fields(self, driver: str, device: Device) -> dict[str, Any]:
        """Return the variable `device` of the expression. Raises ValueError for a bad quantity."""
        # An unknown domain is an empty map, as in kube-scheduler.
        attributes: dict[str, dict[str, Any]] = {domain: {} for domain in self._domains}
        capacity: dict[str, dict[str, Any]] = {domain: {} for domain in self._domains}
        for fact in device.facts:
            where = capacity if fact.kind == QUANTITY else attributes
            where.setdefault(fact.domain, {})[fact.name] = _cel_value(fact)
        return {
            "driver": driver,
            "attributes": attributes,
            "capacity": capacity,
            "allowMultipleAllocations": device.is_shared,
        }


def _is_costly(expression: str) -> bool:
    """Return whether one evaluation may take more than about a millisecond.

    A counted repetition makes a regular expression long: ten `[^x]{1,900}` take 0.2 s. A bound
    value can be in a sum, a list or a map twice, which is bound in turn: 2 000 characters make a
    value that takes hours to compare.
    """
    if len(expression) > MAX_USER_EXPRESSION or "//" in expression or "`" in expression:
        return True  # a comment or a quoted name could hide a function
    called = set(_CALL.findall(expression))
    if not all(map(_CHEAP.fullmatch, called)) or (
        "matches" in called and _LARGE.search(expression)
    ):
        return True
    return "bind" in called and any(s in _LITERALS.sub("", expression) for s in "[{+")


class _TimeBudget:
    """Limits the CPU time of the statements in its `with` blocks."""

    def __init__(self, clock: Callable[[], float], cpu_clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._left = BURST_S
        self._refilled = clock()
        self._began = 0.0

    def has_left(self) -> bool:
        """Return whether any time is left."""
        now = self._clock()
        self._left = min(BURST_S, self._left + (now - self._refilled) * SHARE)
        self._refilled = now
        return self._left > 0

    def __enter__(self) -> None:
        self._began = self._cpu_clock()

    def __exit__(self, *_: object) -> None:
        self._left -= self._cpu_clock() - self._began


def _cel_value(fact: Attribute) -> Any:
    if fact.kind == QUANTITY:
        return _quantity(str(fact.value))
    if fact.kind == "version":
        return _version(str(fact.value))
    if isinstance(fact.value, tuple):
        return [_version(str(v)) if fact.kind == "versions" else v for v in fact.value]
    return fact.value


def _quantity(text: str) -> Mapping[str, int]:
    try:
        return {QUANTITY: parse_amount(CPU, text)}  # in thousandths, the precision of the API
    except InvalidQuantity as error:
        raise ValueError(str(error)) from error


def _version(text: str) -> Mapping[str, list[Any]]:
    """Return a version as lists, which compare in the order of SemVer."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is no semantic version.")
    parts = [[0, int(p), ""] if p.isdigit() else [1, 0, p] for p in (match[4] or "").split(".")]
    release = [0 if match[4] else 1]
    return {SEMVER: [*map(int, match.group(1, 2, 3)), release, parts if match[4] else []]}


def _compare(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    (kind, first), (other, second) = next(iter(left.items())), next(iter(right.items()))
    if kind != other:
        raise ValueError(f"a {kind} does not compare with a {other}.")
    return int(first > second) - int(first < second)


def _new_environment() -> Any:
    """Return the CEL environment of DRA: `device`, quantities, versions and the extensions."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    kind = cel.Type

    def function(name: str, takes: list[Any], returns: Any, run: Callable[..., Any]) -> Any:
        is_member = takes[0] == kind.MAP
        overload = cel.Overload(
            id=name, return_type=returns, parameters=takes, is_member=is_member, impl=run
        )
        return cel.FunctionDecl(name, [overload])

    two = [kind.MAP, kind.MAP]
    functions = [
        function("quantity", [kind.STRING], kind.MAP, _quantity),
        function("semver", [kind.STRING], kind.MAP, _version),
        function("compareTo", two, kind.INT, _compare),
        function("isLessThan", two, kind.BOOL, lambda a, b: _compare(a, b) < 0),
        function("isGreaterThan", two, kind.BOOL, lambda a, b: _compare(a, b) > 0),
        function("major", two[:1], kind.INT, lambda version: version[SEMVER][0]),
        function("minor", two[:1], kind.INT, lambda version: version[SEMVER][1]),
        function("patch", two[:1], kind.INT, lambda version: version[SEMVER][2]),
    ]
    return cel.NewEnv(
        variables={"device": kind.DYN},
        functions=functions,
        extensions=[
            ext_bindings.ExtBindings(),
            ext_optional.ExtOptional(),
            ext_strings.ExtStrings(),
        ],
    )
