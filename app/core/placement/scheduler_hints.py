"""Affinity that is added to a pod so that kube-scheduler picks the assigned node.

At creation it is a preference for nodes in use. At release it is a preference or a requirement for
the assigned node. Only fields that the API server lets change on a gated pod are used. Existing
affinity stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.core.model import (
    NO_AFFINITY,
    AffinityPresence,
    NodeName,
    PlacementStrategy,
    Pod,
    Pool,
    PoolName,
)
from app.core.placement.mismatch import selector_conflict
from app.core.placement.node_filter import node_constraints_of
from app.core.podspec.constraints import NodeConstraints, NodeSelectorRequirement, NodeSelectorTerm
from app.core.podspec.equivalence_class import EquivalenceClass
from app.core.well_known import LABEL_POOL

Patch = list[dict[str, Any]]

HOSTNAME = "kubernetes.io/hostname"

MAX_WEIGHT = 100
"""Weight of a preference; the maximum that kube-scheduler accepts."""

PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

PREFER_USED_NODES = {
    PREFERRED: [
        {
            "weight": MAX_WEIGHT,
            "podAffinityTerm": {
                # Released pods have this label. A pod without devices may have it, too, which only
                # weakens this preference. A missing namespace selector would mean the pod's own
                # namespace.
                "labelSelector": {"matchExpressions": [{"key": LABEL_POOL, "operator": "Exists"}]},
                "namespaceSelector": {},
                "topologyKey": HOSTNAME,
            },
        }
    ]
}
"""Preference for the node with most released pods, of any pool."""


@dataclass(frozen=True, slots=True)
class NodeHint:
    """The node for a release, by hostname label. `is_required`: a requirement, not a preference.

    If `host` is empty, the pod waits for a new node. `excluded_hosts`: hostname labels of nodes it
    must not use, because their free capacity is reserved and kube-scheduler does not know that.
    `affinity_presence`: the affinity that the pod already has.
    """

    host: str
    is_required: bool = False
    affinity_presence: AffinityPresence = NO_AFFINITY
    excluded_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeBinding:
    """How a pod gets to its assigned node: a `NodeHint`, and the node selector of a
    `domain_selector`.
    """

    node_hint: NodeHint | None = None
    domain_selector: Mapping[str, str] = field(default_factory=dict)


NO_BINDING = NodeBinding()


def may_pack(
    pools: Mapping[PoolName, Pool],
    style: PlacementStrategy | None,
    named: Sequence[PoolName],
    selector: Mapping[str, str],
    allowed: Sequence[PoolName],
) -> bool:
    """Return whether a pod may be packed: by its annotation, or by one of its possible pools.

    `named`: pools that its user names. `allowed`: pools of its tenant. Both empty: any. If there is
    no Pool, all nodes are one pool that packs.
    """
    if style is not None or not pools:
        return style is not PlacementStrategy.SPREAD
    return any(
        pool.placement is PlacementStrategy.PACK
        for name, pool in pools.items()
        if (not named or name in named) and (not allowed or name in allowed)
        if not selector_conflict(selector, pool)
    )


def packing_patch(affinity: bool) -> Patch:
    """Return the patch that adds a preference for nodes in use to a pod without pod affinity.

    `affinity`: the pod has other affinity.
    """
    if affinity:
        return [{"op": "add", "path": "/spec/affinity/podAffinity", "value": PREFER_USED_NODES}]
    return [{"op": "add", "path": "/spec/affinity", "value": {"podAffinity": PREFER_USED_NODES}}]


def domain_selector_of(shape: EquivalenceClass, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the node selector that keeps a workload in the domain of a node with these labels."""
    label = shape.layout.required_topology_label
    return {label: labels[label]} if label in labels else {}


def node_hint_of(
    shape: EquivalenceClass,
    pod: Pod,
    node: NodeName | None,
    labels: Mapping[str, str],
    off: Sequence[str] = (),
) -> NodeHint | None:
    """Return the node hint for a pod. None: it needs no hint.

    `labels`: those of its node. `off`: nodes that it must not use. Equal pods in one domain fit in
    any order. If pods are unequal, a small pod may take the capacity of a large one, so each pod
    must use its own node.
    """
    host = labels.get(HOSTNAME, "")
    others = tuple(each for each in off if each != host)
    if not (host or others) or (node is not None and pod.node_names == (node,)):
        return None
    exactly = bool(host and shape.layout.required_topology_label) and len(shape.request_counts) > 1
    return NodeHint(host, exactly, pod.affinity_presence, others)


def constraints_with_hint(
    pod: Pod, selector: Mapping[str, str], steer: NodeHint | None
) -> NodeConstraints:
    """Return the node constraints of a pod after `node_hint_patch` and the selector are applied."""
    said = node_constraints_of(pod)
    must = _hint_requirement(steer) if steer is not None else None
    affinity = said.affinity
    if must is not None:
        each = NodeSelectorRequirement(must["key"], must["operator"], tuple(must["values"]))
        if affinity is None:
            affinity = (NodeSelectorTerm((each,)),)
        else:
            affinity = tuple(_add_requirement(term, each) for term in affinity)
    chosen = tuple(sorted({**pod.selector, **selector}.items()))
    return NodeConstraints(chosen, affinity, said.tolerations)


def _add_requirement(term: NodeSelectorTerm, each: NodeSelectorRequirement) -> NodeSelectorTerm:
    """Add a requirement to a term. An empty term matches no node and stays empty."""
    return term._replace(expressions=(*term.expressions, each)) if any(term) else term


def _hint_requirement(steer: NodeHint) -> dict[str, Any] | None:
    """Return the requirement on the node, if there is one."""
    if steer.is_required:
        return {"key": HOSTNAME, "operator": "In", "values": [steer.host]}
    if steer.excluded_hosts:
        return {"key": HOSTNAME, "operator": "NotIn", "values": list(steer.excluded_hosts)}
    return None


def node_hint_patch(steer: NodeHint) -> Patch:
    """Return the part of a release patch that adds the node hint."""
    here = {"key": HOSTNAME, "operator": "In", "values": [steer.host]}
    bounds, path = steer.affinity_presence, "/spec/affinity"
    must = _hint_requirement(steer)
    wanted: dict[str, Any] = {}
    if must is not None:
        wanted[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": [must]}]}
    if steer.host and not steer.is_required:
        preference = {"weight": MAX_WEIGHT, "preference": {"matchExpressions": [here]}}
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
            patch += _add_to_every_term(f"{at}/nodeSelectorTerms", must, bounds.terms)
        elif key == PREFERRED and bounds.preferred:
            patch.append({"op": "add", "path": f"{at}/-", "value": value[0]})
        else:
            patch.append({"op": "add", "path": at, "value": value})
    return patch


def _add_to_every_term(path: str, here: dict[str, Any], terms: Sequence[bool | None]) -> Patch:
    """Add the requirement to every term, because one is enough. Empty terms match no node."""
    patch: Patch = []
    for number, written in enumerate(terms):
        at = f"{path}/{number}/matchExpressions"
        if written is not None:
            value = here if written else [here]
            patch.append({"op": "add", "path": at + ("/-" if written else ""), "value": value})
    return patch
