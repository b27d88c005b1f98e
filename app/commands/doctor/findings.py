"""The result of the checks of `fairgate doctor`: findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

MOST_NAMES = 5
"""Maximum number of names in the text of a finding. The JSON output has all names."""


class Level(Enum):
    """How serious a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Check(Enum):
    """The subject of a finding. The values are stable."""

    KUBERNETES = "kubernetes"
    POLICIES = "admission-policies"
    SCHEDULERS = "schedulers"
    NAMESPACES = "exempt-namespaces"
    PODS = "refused-pods"
    OPERATORS = "operators"
    DEVICES = "devices"
    DEVICE_CLASSES = "device-classes"
    PRIORITIES = "priority-classes"
    QUOTAS = "quotas"
    CONDITIONS = "conditions"
    COMPONENTS = "components"
    WEBHOOKS = "webhooks"
    CANARY = "canary"
    LEADER = "leader"
    MODE = "mode"
    RULES = "rules"
    REDIS = "redis"
    RIGHTS = "rights"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `remedy` says what to do, "" at level OK."""

    check: Check
    level: Level
    message: str
    remedy: str = ""
    objects: tuple[str, ...] = ()
    """All objects that the finding is about."""

    @property
    def line(self) -> str:
        """Return the finding as one line."""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.level.value:<7}  {self.check.value}: {self.message}{remedy}"


def ok(check: Check, message: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Level.OK, message)


def warning(check: Check, message: str, remedy: str, objects: Iterable[str] = ()) -> Finding:
    """Return a finding that needs attention, but breaks no pod."""
    return Finding(check, Level.WARNING, message, remedy, tuple(objects))


def problem(check: Check, message: str, remedy: str, objects: Iterable[str] = ()) -> Finding:
    """Return a finding that breaks pods or queueing until it is solved."""
    return Finding(check, Level.PROBLEM, message, remedy, tuple(objects))


def names(of: Iterable[str], most: int = MOST_NAMES) -> str:
    """Return names as text, the first ones only if there are many."""
    written = list(of)
    more = f" and {len(written) - most} more" if len(written) > most else ""
    return ", ".join(written[:most]) + more


def count(number: int, thing: str) -> str:
    """Return a number with its noun."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
