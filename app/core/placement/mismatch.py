"""The first reason, in words, why no node of a pool matches a pod.

It explains the result of the node filter (`node_filter`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.model import Node, NodeName, NodeSet, Pool
from app.core.podspec.constraints import (
    NodeConstraints,
    RequiredAffinity,
    Taint,
    contains_labels,
    first_untolerated_taint,
    shorten_list,
)

MAX_LISTED = 3
"""Maximum number of taints, or of affinity terms, in a sentence."""


def selector_conflict(selector: Mapping[str, str], pool: Pool) -> str:
    """Return the contradiction between a node selector and that of a pool; "" if they agree."""
    for key, value in sorted(selector.items()):
        own = pool.selector.get(key, value)
        if own != value:
            return f"its node selector asks for {key}={value}, the pool is {key}={own}"
    return ""


def explain_mismatch(
    terms: NodeConstraints, only: NodeSet, pool: Pool, nodes: Sequence[Node]
) -> str:
    """Return why no node of a pool matches these terms. `nodes`: all nodes of the pool."""
    allowed = [node for node in nodes if only is None or node.name in only]
    if not allowed and nodes:
        return f"{describe_nodes(only or ())}, which it must go to, is not in it"
    named = [node for node in allowed if contains_labels(node.labels, terms.selector)]
    if not named:
        wanted = shorten_list(f"{key}={value}" for key, value in terms.selector)
        who = f"{describe_nodes(only)}, which it must go to, lacks" if only else "its nodes lack"
        return f"{who} the labels of the pod's node selector, {wanted}"
    suited = [node for node in named if terms.matches_node(node.name, node.labels)]
    if not suited and terms.affinity is not None:
        return (
            "its nodes do not match the pod's node affinity, "
            f"{_describe_unmet_affinity(terms, named)}"
        )
    borne = (*terms.tolerations, *pool.tolerations)
    taints = [
        taint
        for node in suited
        if (taint := first_untolerated_taint(node.taints, borne)) is not None
    ]
    return _describe_taints(taints, all_of_it=len(suited) == len(nodes))


def describe_nodes(only: tuple[NodeName, ...]) -> str:
    """Return some nodes in words."""
    if len(only) == 1:
        return f"node {only[0]}"
    return f"one of {len(only)} nodes" if only else "no node"


def _describe_unmet_affinity(terms: NodeConstraints, nodes: Sequence[Node]) -> str:
    """Return the requirement that no node meets. If some node meets each one, return all terms."""
    affinity: RequiredAffinity = terms.affinity or ()
    if len(affinity) == 1:
        for each in affinity[0].expressions:
            if not any(each.matches(node.labels) for node in nodes):
                return str(each)
    words = [str(term) for term in affinity[:MAX_LISTED]]
    more = len(affinity) - MAX_LISTED
    return (" or ".join(words) or "nothing") + (f" or {more} more" if more > 0 else "")


def _describe_taints(taints: Sequence[Taint], *, all_of_it: bool) -> str:
    found = sorted(Counter(taints).items(), key=lambda pair: (-pair[1], pair[0]))
    which = "node of it" if all_of_it else "node of it that it may go to"
    if len(found) == 1:
        return f"it does not tolerate {found[0][0]}, the taint of every {which}"
    words = ", ".join(f"{taint} ({count})" for taint, count in found[:MAX_LISTED])
    more = f" and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    return f"it does not tolerate the taints of any {which}: {words}{more}"
