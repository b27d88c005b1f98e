"""Maximum lengths of the lists of a managed pod, and the message for a pod that exceeds one.

The API server accepts pods of more than 1 MB. Every process reads every pod, so each list has a
bound well above real use. The chart has the same numbers and messages in CEL
(templates/_bounds.tpl).
"""

from __future__ import annotations

from typing import NamedTuple


class ListLengths(NamedTuple):
    """The number of entries in each list of a pod that Fairgate reads, in the order of `BOUNDS`."""

    selector: int = 0
    tolerations: int = 0
    node_terms: int = 0
    node_requirements: int = 0
    node_values: int = 0
    preferences: int = 0
    pod_terms: int = 0
    spreads: int = 0
    pod_requirements: int = 0
    pod_values: int = 0
    containers: int = 0
    resources: int = 0
    claims: int = 0
    gates: int = 0
    annotation: int = 0
    """Characters of the longest annotation that Fairgate reads."""


BOUNDS = ListLengths(
    selector=50,
    tolerations=50,
    node_terms=50,
    node_requirements=100,
    node_values=250,
    preferences=50,
    pod_terms=50,
    spreads=20,
    pod_requirements=100,
    pod_values=200,
    containers=100,
    resources=300,
    claims=50,
    gates=20,
    annotation=4096,
)

_WHAT = {
    "selector": "keys in spec.nodeSelector",
    "tolerations": "tolerations",
    "node_terms": "terms in its required node affinity",
    "node_requirements": "requirements in its required node affinity",
    "node_values": "values in its required node affinity",
    "preferences": "terms in its preferred node affinity",
    "pod_terms": "terms in its required pod affinity and anti-affinity",
    "spreads": "topology spread constraints",
    "pod_requirements": "requirements in its pod affinity and spread constraints",
    "pod_values": "values and namespaces in its pod affinity and spread constraints",
    "containers": "containers",
    "resources": "entries in the resource limits and requests of its containers",
    "claims": "resource claims",
    "gates": "scheduling gates",
    "annotation": "characters in an annotation of fairgate.io",
}

TOO_LARGE = "Fairgate: a pod that requests managed resources may have at most {0} {1}; use fewer."

RELEASED = 2
"""Factor on the bounds for a released pod: the release itself adds to its lists."""


def size_limit_message(sizes: ListLengths, times: int = 1) -> str:
    """Return the message for the first exceeded bound, or an empty string.

    `times`: factor on every bound.
    """
    for field, size, most in zip(ListLengths._fields, sizes, BOUNDS, strict=True):
        if size > most * times:
            return sentence(field)
    return ""


def sentence(field: str) -> str:
    """Return the message for a pod that exceeds the bound of a field of `ListLengths`."""
    return TOO_LARGE.format(getattr(BOUNDS, field), _WHAT[field])
