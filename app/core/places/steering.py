"""What brings the stock scheduler to put pods where the engine has laid them out.

At create a soft pull towards nodes in use, at release one towards the very node, or the order to
take no other. Only what the API server lets change behind a gate; what is written there stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.asks.shape import Shape
from app.core.asks.terms import Requirement, Term, Terms
from app.core.model import (
    LABEL_POOL,
    NO_BOUNDS,
    Bounds,
    NodeName,
    Pod,
    Pool,
    PoolName,
    Style,
)
from app.core.places.obstacles import clash
from app.core.places.reach import terms_of

Patch = list[dict[str, Any]]

HOSTNAME = "kubernetes.io/hostname"

STRONGEST = 100
"""Weight of a preference; the scheduler takes no more."""

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

TOWARDS_OTHERS = {
    PREFERRED: [
        {
            "weight": STRONGEST,
            "podAffinityTerm": {
                # Only what was released carries this; without the selector of namespaces, only
                # the pod's own would count.
                "labelSelector": {"matchExpressions": [{"key": LABEL_POOL, "operator": "Exists"}]},
                "namespaceSelector": {},
                "topologyKey": HOSTNAME,
            },
        }
    ]
}
"""A pull to the node that has most of what Fairgate released, whatever pool that will be."""


@dataclass(frozen=True, slots=True)
class Steer:
    """To which node a release steers a pod, by its label; `exactly`: it may take no other. Without
    a `host` to none: it waits for a node to come.

    `off` are nodes that it may not take, by the same label: what is free there is kept for others,
    and the scheduler does not know it. `bounds` is what is written already where that goes.
    """

    host: str
    exactly: bool = False
    bounds: Bounds = NO_BOUNDS
    off: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Way:
    """How a pod comes to where it is to go: steered, and by the node selector of a `domain`."""

    steer: Steer | None = None
    domain: Mapping[str, str] = field(default_factory=dict)


NO_WAY = Way()


def may_pack(
    pools: Mapping[PoolName, Pool],
    style: Style | None,
    named: Sequence[PoolName],
    selector: Mapping[str, str],
    allowed: Sequence[PoolName],
) -> bool:
    """Tell whether a pod may be packed: its user says so, or one of the pools it may go to packs.

    `named` are those its user names, `allowed` those of its tenant; none: any. Without any pool
    there is one, and it packs.
    """
    if style is not None or not pools:
        return style is not Style.SPREAD
    return any(
        pool.placement is Style.PACK
        for name, pool in pools.items()
        if (not named or name in named) and (not allowed or name in allowed)
        if not clash(selector, pool)
    )


def packing_patch(affinity: bool) -> Patch:
    """Return the patch that pulls a pod without pod affinity to others; `affinity`: it has any."""
    if affinity:
        return [{"op": "add", "path": "/spec/affinity/podAffinity", "value": TOWARDS_OTHERS}]
    return [{"op": "add", "path": "/spec/affinity", "value": {"podAffinity": TOWARDS_OTHERS}}]


def confined_to(shape: Shape, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the node selector that keeps a workload in the domain of a node with these labels."""
    label = shape.manner.confined
    return {label: labels[label]} if label in labels else {}


def steer_of(
    shape: Shape,
    pod: Pod,
    node: NodeName | None,
    labels: Mapping[str, str],
    off: Sequence[str] = (),
) -> Steer | None:
    """Return how a pod is steered to a node with these labels, and off some others; None: not.

    Equal pods that are kept in one domain fit there in any order. Of unlike ones a small one may
    take the room of a large one, so each has to take its own node.
    """
    host = labels.get(HOSTNAME, "")
    others = tuple(each for each in off if each != host)
    if not (host or others) or (node is not None and pod.only == (node,)):
        return None
    exactly = bool(host and shape.manner.confined) and len(shape.parts) > 1
    return Steer(host, exactly, pod.bounds, others)


def steered(pod: Pod, selector: Mapping[str, str], steer: Steer | None) -> Terms:
    """Return what a pod says about nodes once it is released so; see `steer_patch`."""
    said = terms_of(pod)
    must = _must(steer) if steer is not None else None
    affinity = said.affinity
    if must is not None:
        each = Requirement(must["key"], must["operator"], tuple(must["values"]))
        if affinity is None:
            affinity = (Term((each,)),)
        else:
            affinity = tuple(_with(term, each) for term in affinity)
    chosen = tuple(sorted({**pod.selector, **selector}.items()))
    return Terms(chosen, affinity, said.tolerations)


def _with(term: Term, each: Requirement) -> Term:
    """Ask for more; an empty term is met by no node, and stays so."""
    return term._replace(expressions=(*term.expressions, each)) if any(term) else term


def _must(steer: Steer) -> dict[str, Any] | None:
    """Return what a pod must find at its node."""
    if steer.exactly:
        return {"key": HOSTNAME, "operator": "In", "values": [steer.host]}
    if steer.off:
        return {"key": HOSTNAME, "operator": "NotIn", "values": list(steer.off)}
    return None


def steer_patch(steer: Steer) -> Patch:
    """Return the part of a release patch that steers the pod."""
    here = {"key": HOSTNAME, "operator": "In", "values": [steer.host]}
    bounds, path = steer.bounds, "/spec/affinity"
    must = _must(steer)
    wanted: dict[str, Any] = {}
    if must is not None:
        wanted[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [must]}]}
    if steer.host and not steer.exactly:
        preference = {"weight": STRONGEST, "preference": {"matchExpressions": [here]}}
        wanted[PREFERRED] = [preference]
    if not bounds.affinity:
        return [{"op": "add", "path": path, "value": {"nodeAffinity": wanted}}]
    path += "/nodeAffinity"
    if not bounds.nodes:
        return [{"op": "add", "path": path, "value": wanted}]
    patch: Patch = []
    for key, value in wanted.items():
        at = f"{path}/{key}"
        if key == REQUIRED and must is not None and bounds.terms:
            patch += _into_every_term(f"{at}/nodeSelectorTerms", must, bounds.terms)
        elif key == PREFERRED and bounds.preferred:
            patch.append({"op": "add", "path": f"{at}/-", "value": value[0]})
        else:
            patch.append({"op": "add", "path": at, "value": value})
    return patch


def _into_every_term(path: str, here: dict[str, Any], terms: Sequence[bool | None]) -> Patch:
    """Any of the terms is enough for the scheduler; one that is empty matches no node."""
    patch: Patch = []
    for number, written in enumerate(terms):
        at = f"{path}/{number}/matchExpressions"
        if written is not None:
            value = here if written else [here]
            patch.append({"op": "add", "path": at + ("/-" if written else ""), "value": value})
    return patch
