"""msgspec structs for scheduling constraints of pods, nodes and pools.

Import them from `objects` or `admission`.
"""

from __future__ import annotations

import msgspec


class KubeStruct(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Base of all structs: camelCase in JSON, unknown fields are ignored."""


class RequirementSpec(KubeStruct, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(KubeStruct, frozen=True):
    match_expressions: list[RequirementSpec] | None = None
    match_fields: list[RequirementSpec] | None = None


class NodeTerms(KubeStruct, frozen=True):
    node_selector_terms: list[NodeTerm] | None = None


class CountedObject(KubeStruct, frozen=True):
    """An object that is only counted, not read."""


class NodeAffinity(KubeStruct, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: list[CountedObject] | None = None


class LabelSelector(KubeStruct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[RequirementSpec] | None = None


class PodTerm(KubeStruct, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PodAffinity(KubeStruct, frozen=True):
    required_during_scheduling_ignored_during_execution: list[PodTerm] | None = None


class AffinitySpec(KubeStruct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spread(KubeStruct, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class TolerationSpec(KubeStruct, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TaintSpec(KubeStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""
