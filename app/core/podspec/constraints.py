"""Node constraints of a pod as kube-scheduler reads them: selector, required affinity, tolerations.

Evaluates one node at a time, without pools or capacity. Also contains the distance rules between
pods, as values only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from itertools import count
from typing import NamedTuple, final
from weakref import WeakValueDictionary

_WHOLE = re.compile(r"([+-]?)0*(\d{1,19})", re.ASCII)
_PLAIN = re.compile(r"(-?)(0|[1-9]\d{0,18})(?<!-0)", re.ASCII)
_LONGEST = 1 << 63

EXCLUDING_EFFECTS = frozenset(("NoSchedule", "NoExecute"))
"""Effects that exclude pods from a node. PreferNoSchedule is only a preference."""

READINESS_TAINTS = frozenset(
    f"node.kubernetes.io/{word}" for word in ("not-ready", "unreachable", "unschedulable")
)
"""Taints that repeat the readiness of a node. The node controller adds and removes them, without a
value."""

NAME_FIELD = "metadata.name"

LISTED = 12
"""Maximum number of words of a list in a message. Users write lists with thousands."""


class Taint(NamedTuple):
    """A node taint. It excludes pods that do not tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        """Return the taint in the format of kubectl."""
        named = f"{self.key}={self.value}" if self.value else self.key
        return f"{named}:{self.effect}"


class Toleration(NamedTuple):
    """A toleration of a pod. Empty `key`: any taint. Empty `effect`: any effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None

    def tolerates(self, taint: Taint) -> bool:
        """Return whether the toleration matches a taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "" | "Equal":
                return self.value == taint.value
            case "Exists":
                return True
            case "Lt" | "Gt":  # the API server accepts these only behind a feature gate
                own, its = _number(_PLAIN, self.value), _number(_PLAIN, taint.value)
                if own is None or its is None:
                    return False
                return its < own if self.operator == "Lt" else its > own
        return False

    def __str__(self) -> str:
        """Return the toleration in readable form."""
        sign = {"Lt": "<", "Gt": ">", "Exists": None}.get(self.operator, "=")
        named = f"{self.key}{sign}{self.value}" if sign else self.key or "every taint"
        seconds = f" for {self.seconds} s" if self.seconds is not None else ""
        return f"{named}:{self.effect}{seconds}" if self.effect else f"{named}{seconds}"


class NodeSelectorRequirement(NamedTuple):
    """A requirement on a label or field of a node. `values` may be a set if no message shows it."""

    key: str
    operator: str
    values: Collection[str] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet the requirement. NotIn is also met if the label is absent."""
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
                own, its = parse_whole_number(next(iter(self.values))), parse_whole_number(found)
                if own is None or its is None:
                    return False
                return its > own if self.operator == "Gt" else its < own
        return False  # no label meets an unknown operator

    def __str__(self) -> str:
        """Return the requirement in words."""
        match self.operator:
            case "In" if len(self.values) == 1:
                return f"{self.key}={next(iter(self.values))}"
            case "In" | "NotIn":
                word = "in" if self.operator == "In" else "not in"
                return f"{self.key} {word} ({shorten_list(self.values)})"
            case "Exists":
                return f"a label {self.key}"
            case "DoesNotExist":
                return f"no label {self.key}"
            case "Gt" | "Lt":
                sign = ">" if self.operator == "Gt" else "<"
                return f"{self.key} {sign} {', '.join(self.values)}"
        return f"{self.key} {self.operator}"


class NodeSelectorTerm(NamedTuple):
    """One alternative of a required node affinity. A node must meet every requirement in it."""

    expressions: tuple[NodeSelectorRequirement, ...] = ()
    fields: tuple[NodeSelectorRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node meets the term. No node meets an empty term."""
        if not self.expressions and not self.fields:
            return False
        named = {NAME_FIELD: name}
        return all(each.matches(labels) for each in self.expressions) and all(
            each.matches(named) for each in self.fields
        )

    def __str__(self) -> str:
        """Return the term in words."""
        written = (*self.expressions, *self.fields)
        return shorten_list(map(str, written[: LISTED + 1]), " and ", len(written)) or "nothing"


RequiredAffinity = tuple[NodeSelectorTerm, ...]
"""A required node affinity: a node must meet at least one term. Empty: no node matches."""


@final
class NodeConstraints:
    """The node constraints of a pod. `affinity` None: there is no required node affinity.

    Equal values are one object while in use, so comparing and hashing take constant time. Data
    stored by weak reference to it is freed with the last pod that has it. `number` is unique. No
    field may be changed.
    """

    __slots__ = ("__weakref__", "affinity", "number", "selector", "tolerations")

    selector: tuple[tuple[str, str], ...]
    affinity: RequiredAffinity | None
    tolerations: tuple[Toleration, ...]
    number: int

    def __new__(
        cls,
        selector: tuple[tuple[str, str], ...] = (),
        affinity: RequiredAffinity | None = None,
        tolerations: tuple[Toleration, ...] = (),
    ) -> NodeConstraints:
        """Return the single object with these values."""
        key = (selector, affinity, tolerations)
        found = _IN_USE.get(key)
        if found is None:
            found = super().__new__(cls)
            found.selector, found.affinity, found.tolerations = key
            found.number = next(_NUMBERS)
            _IN_USE[key] = found
        return found

    def __reduce__(self) -> tuple[type[NodeConstraints], tuple[object, ...]]:
        """Copy by value, also into another process."""
        return NodeConstraints, (self.selector, self.affinity, self.tolerations)

    def __repr__(self) -> str:
        return f"Terms({self.selector!r}, {self.affinity!r}, {self.tolerations!r})"

    def matches_node(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the labels and the name of a node meet the selector and the affinity."""
        if not contains_labels(labels, self.selector):
            return False
        return self.affinity is None or any(term.matches(name, labels) for term in self.affinity)


_IN_USE: WeakValueDictionary[object, NodeConstraints] = WeakValueDictionary()
_NUMBERS = count()

ANYWHERE = NodeConstraints()


class DistanceRuleKind(Enum):
    """The kinds of distance rules between pods."""

    APART = "required pod anti-affinity"
    """No other pod of its group may be in the same domain."""
    CLOSE = "required pod affinity"
    """The domain must contain pods of its group. The first pod of the group may use any domain."""
    EVEN = "topology spread"
    """The domain may have at most `max_skew` more pods of the group than the domain with fewest."""
    AVOIDED = "anti-affinity of existing pods"
    """The domain must not contain pods of the group: their anti-affinity selects this pod. The pod
    itself is not in the group."""
    REFUSED = "nodes that refused pods of its tenant"
    """The node itself must not be in the group. `key` has no meaning."""
    DEVICES = "device requests"
    """The node itself must not be in the group: its devices cannot serve the request. `key` has no
    meaning."""
    AVOIDS = "required pod anti-affinity to other pods"
    """The pod counts in a group that other pods must avoid. The rule does not restrict the pod
    itself."""


class PodDistanceRule(NamedTuple):
    """A distance rule between pods of one group. A domain is a value of the label `topology_key`.

    `min_domains`: with fewer domains, the domain with fewest pods counts as empty.
    `honors_node_affinity`,
    `honors_taints`: only nodes that match the node constraints, or the tolerations, of the pod form
    domains. `tolerated_readiness`: the readiness taints that the pod tolerates, if the rule honors
    taints.
    """

    kind: DistanceRuleKind
    topology_key: str
    group: str
    max_skew: int = 1
    min_domains: int = 0
    honors_node_affinity: bool = True
    honors_taints: bool = False
    tolerated_readiness: tuple[Taint, ...] = ()

    def __str__(self) -> str:
        """Return the rule in words."""
        return f"{self.kind.value} by {self.topology_key}"


def shorten_list(words: Iterable[str], between: str = ", ", count: int | None = None) -> str:
    """Return the first `LISTED` words and the number of the others. `count`: the total number."""
    written = list(words)
    more = (len(written) if count is None else count) - LISTED
    return between.join(written[:LISTED]) + (f" and {more} more" if more > 0 else "")


def contains_labels(labels: Mapping[str, str], wanted: Iterable[tuple[str, str]]) -> bool:
    """Return whether labels contain all these keys with these values."""
    return all(labels.get(key) == value for key, value in wanted)


def first_untolerated_taint(
    taints: Iterable[Taint], tolerations: Iterable[Toleration]
) -> Taint | None:
    """Return the first taint that no toleration matches. None if the node may be used."""
    for taint in taints:
        if taint.effect in EXCLUDING_EFFECTS and not any(
            each.tolerates(taint) for each in tolerations
        ):
            return taint
    return None


def relevant_tolerations(tolerations: tuple[Toleration, ...]) -> tuple[Toleration, ...]:
    """Return the tolerations that can affect the result. Kubernetes adds others to every pod."""
    return tuple(
        each
        for each in tolerations
        if each.key not in READINESS_TAINTS
        and (not each.effect or each.effect in EXCLUDING_EFFECTS)
    )


ALL_READINESS_TAINTS = tuple(
    Taint(key, "", effect)
    for key in sorted(READINESS_TAINTS)
    for effect in sorted(EXCLUDING_EFFECTS)
)
"""Every readiness taint that keeps pods off a node."""


def tolerated_readiness_taints(tolerations: Collection[Toleration]) -> tuple[Taint, ...]:
    """Return the readiness taints that a pod with these tolerations tolerates."""
    return tuple(
        taint
        for taint in ALL_READINESS_TAINTS
        if any(each.tolerates(taint) for each in tolerations)
    )


def parse_whole_number(text: str) -> int | None:
    """Return the number that Gt and Lt compare. None if the text is not a number."""
    return _number(_WHOLE, text)


def _number(grammar: re.Pattern[str], text: str) -> int | None:
    """Return a whole number of 64 bits. None for any other text."""
    found = grammar.fullmatch(text)
    if found is None:
        return None
    value = int(found[1] + found[2])  # Python reads no number with thousands of zeros
    return value if -_LONGEST <= value < _LONGEST else None
