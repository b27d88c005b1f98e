"""Which nodes a pod may go to, as the scheduler reads it: selector, required affinity, tolerations.

Values and their rules, a node at a time; and, as values only, the distance pods keep from each
other. Knows no pools, and nothing of room.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

_WHOLE = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_PLAIN = re.compile(r"0|-?[1-9]\d{0,18}", re.ASCII)
_LONGEST = 1 << 63

BARRING = frozenset(("NoSchedule", "NoExecute"))
"""Effects that keep pods off a node; PreferNoSchedule only asks."""

FOLLOWING = frozenset(
    f"node.kubernetes.io/{word}" for word in ("not-ready", "unreachable", "unschedulable")
)
"""Taints that say again what a node's readiness says, and that come and go with it."""

NAME_FIELD = "metadata.name"


class Taint(NamedTuple):
    """What keeps pods off a node that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        """Return it as kubectl writes it."""
        named = f"{self.key}={self.value}" if self.value else self.key
        return f"{named}:{self.effect}"


class Toleration(NamedTuple):
    """A taint that a pod bears. No `key`: any, no `effect`: every one of it."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None

    def bears(self, taint: Taint) -> bool:
        """Tell whether a pod with this may go to a node with that taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case "Lt" | "Gt":  # the API server takes these only where they are switched on
                own, its = _number(_PLAIN, self.value), _number(_PLAIN, taint.value)
                if own is None or its is None:
                    return False
                return its < own if self.operator == "Lt" else its > own
        return False

    def __str__(self) -> str:
        """Return it as people write it."""
        sign = {"Lt": "<", "Gt": ">", "Exists": None}.get(self.operator, "=")
        named = f"{self.key}{sign}{self.value}" if sign else self.key or "every taint"
        seconds = f" for {self.seconds} s" if self.seconds is not None else ""
        return f"{named}:{self.effect}{seconds}" if self.effect else f"{named}{seconds}"


class Requirement(NamedTuple):
    """What a label of a node, or a field of it, must be. `values` is a set if it is never shown."""

    key: str
    operator: str
    values: Collection[str] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether labels are so. NotIn also holds where there is no such label."""
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found is not None and found in self.values
            case "NotIn":
                return found is None or found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                if found is None or len(self.values) != 1:
                    return False
                own, its = _number(_WHOLE, next(iter(self.values))), _number(_WHOLE, found)
                if own is None or its is None:
                    return False
                return its > own if self.operator == "Gt" else its < own
        return False  # an operator that is not known is met by nothing

    def __str__(self) -> str:
        """Return it in words."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={next(iter(self.values))}"
            case "In" | "NotIn":
                word = "in" if self.operator == "In" else "not in"
                return f"{self.key} {word} ({', '.join(self.values)})"
            case "Exists":
                return f"a label {self.key}"
            case "DoesNotExist":
                return f"no label {self.key}"
            case "Gt" | "Lt":
                sign = ">" if self.operator == "Gt" else "<"
                return f"{self.key} {sign} {', '.join(self.values)}"
        return f"{self.key} {self.operator}"


class Term(NamedTuple):
    """One of the alternatives of a required node affinity: all of it must hold."""

    expressions: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def holds(self, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether a node meets it. An empty term is met by no node."""
        if not self.expressions and not self.fields:
            return False
        named = {NAME_FIELD: name}
        return all(each.holds(labels) for each in self.expressions) and all(
            each.holds(named) for each in self.fields
        )

    def __str__(self) -> str:
        """Return it in words."""
        return " and ".join(str(each) for each in (*self.expressions, *self.fields)) or "nothing"


Affinity = tuple[Term, ...]
"""A required node affinity: one of these must hold. Empty: no node will do."""


class Terms(NamedTuple):
    """All that a pod says about the nodes it may go to. `affinity` None: it requires none."""

    selector: tuple[tuple[str, str], ...] = ()
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()

    def suits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels and the name of a node are what the pod asks for."""
        if not has_all(labels, self.selector):
            return False
        return self.affinity is None or any(term.holds(name, labels) for term in self.affinity)


ANYWHERE = Terms()


class Distance(Enum):
    """What a rule about distance asks of a pod."""

    APART = "required pod anti-affinity"
    """No other of its group in the same domain."""
    CLOSE = "required pod affinity"
    """In a domain where others of its group are; the first may go anywhere."""
    EVEN = "topology spread"
    """Of its group not more than `skew` more than in the domain with fewest."""


class Spacing(NamedTuple):
    """A rule about the distance between pods of one group; a domain is a value of label `key`.

    `least`: with fewer domains, the one with fewest counts as empty. `honors_terms`,
    `honors_taints`: whether domains are only those that the pod may go to otherwise.
    """

    distance: Distance
    key: str
    group: str
    skew: int = 1
    least: int = 0
    honors_terms: bool = True
    honors_taints: bool = False

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.distance.value} by {self.key}"


def has_all(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> bool:
    """Tell whether labels have all these keys, each with its value."""
    return all(labels.get(key) == value for key, value in wanted)


def unborne(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first taint that nothing here tolerates; None: the node may be used."""
    for taint in taints:
        if taint.effect in BARRING and not any(each.bears(taint) for each in tolerations):
            return taint
    return None


@lru_cache(maxsize=4096)  # asked for every pod; there are few different ones
def telling(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Return those of a pod's tolerations that can make a difference, without the readiness of
    nodes; every pod gets some that cannot.
    """
    return tuple(
        each
        for each in tolerations
        if each.key not in FOLLOWING and (not each.effect or each.effect in BARRING)
    )


def _number(grammar: re.Pattern[str], text: str) -> int | None:
    """Return a whole number of 64 bits; None for anything else."""
    if not grammar.fullmatch(text):
        return None
    value = int(text)
    return value if -_LONGEST <= value < _LONGEST else None
