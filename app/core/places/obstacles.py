"""What a pod asks of nodes and a pool, or no node of it, has: the first such thing, in words.

Of nodes it says what `reach` decided, and decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from app.core.asks.terms import Affinity, Taint, Terms, unborne
from app.core.model import Node, NodeName, Pin, Pool

MOST = 3
"""Taints, and alternatives of an affinity, that a sentence names."""


def clash(selector: Mapping[str, str], pool: Pool) -> str:
    """Return what of a pod's node selector no node of a pool can ever meet; "": nothing."""
    for key, value in sorted(selector.items()):
        own = pool.selector.get(key, value)
        if own != value:
            return f"its node selector asks for {key}={value}, the pool is {key}={own}"
    return ""


def obstacle(terms: Terms, only: Pin, pool: Pool, nodes: Sequence[Node]) -> str:
    """Return why none of these nodes, which are all of a pool, takes a pod of these terms."""
    labelled = [node for node in nodes if Terms(terms.selector).suits(node.name, node.labels)]
    if not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in terms.selector)
        return f"no node of it has the labels of its node selector, {wanted}"
    named = [node for node in labelled if only is None or node.name in only]
    if not named:
        return f"{nodes_text(only or ())}, which it must go to, is not in it"
    suited = [node for node in named if terms.suits(node.name, node.labels)]
    if not suited and terms.affinity is not None:
        return f"no node of it has what its node affinity requires, {_required(terms, named)}"
    borne = (*terms.tolerations, *pool.tolerations)
    taints = [taint for node in suited if (taint := unborne(node.taints, borne)) is not None]
    return _tainted(taints, all_of_it=len(suited) == len(nodes))


def nodes_text(only: tuple[NodeName, ...]) -> str:
    """Return some nodes in words."""
    if len(only) == 1:
        return f"node {only[0]}"
    return f"one of {len(only)} nodes" if only else "no node"


def _required(terms: Terms, nodes: Sequence[Node]) -> str:
    """Return the requirement that no node meets; if each is met by some, all of them."""
    affinity: Affinity = terms.affinity or ()
    if len(affinity) == 1:
        for each in affinity[0].expressions:
            if not any(each.holds(node.labels) for node in nodes):
                return str(each)
    words = [str(term) for term in affinity[:MOST]]
    more = len(affinity) - MOST
    return (" or ".join(words) or "nothing") + (f" or {more} more" if more > 0 else "")


def _tainted(taints: Sequence[Taint], *, all_of_it: bool) -> str:
    found = sorted(Counter(taints).items(), key=lambda pair: (-pair[1], pair[0]))
    which = "node of it" if all_of_it else "node of it that it may go to"
    if len(found) == 1:
        return f"it does not tolerate {found[0][0]}, the taint of every {which}"
    words = ", ".join(f"{taint} ({count})" for taint, count in found[:MOST])
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return f"it does not tolerate the taints of any {which}: {words}{more}"
