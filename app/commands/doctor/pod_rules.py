"""Judges pods and pod templates as the webhook would in mode Enforce, with the webhook's rules.

Differences: stamps and the gate are assumed, and the name of the scheduler is not judged. The
checks of schedulers report it once for all pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.commands.doctor.assumptions import Assumptions
from app.core.admission import hold
from app.core.admission.priority_class_twins import (
    NEVER,
    KnownPriorityClasses,
    PriorityClass,
    Twin,
    wanted_twins,
)
from app.core.admission.validation import PodFacts, PodValidator
from app.core.errors import InvalidInput
from app.core.model import TenantName, UserName
from app.core.well_known import (
    ANNOTATION_RELEASE,
    ANNOTATION_SUBMITTER,
    GATE,
    KEY_PREFIX,
    LABEL_TENANT,
    LABEL_USER,
    RELEASE_HELD,
)
from app.k8s_types import objects
from app.web.webhook import pod_facts

CALLER = UserName("doctor")
"""The assumed submitter. No rule depends on the name."""

STAMPS = {ANNOTATION_RELEASE: RELEASE_HELD, ANNOTATION_SUBMITTER: str(CALLER)}
LABELS = {LABEL_TENANT: "x", LABEL_USER: "x"}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Fairgate would do with a pod. `refusal` is the message, "" if it would be admitted."""

    requests_devices: bool
    refusal: str = ""


class PodJudge:
    """Judges with the settings and PriorityClasses of one cluster."""

    def __init__(self, assumed: Assumptions, classes: KnownPriorityClasses) -> None:
        """The twins of all classes count as existing, because the webhook creates them."""
        self._guard = PodValidator(assumed.rules)
        self._scheduler = assumed.rules.schedulers[0]
        self._managed = assumed.resources
        wanted = {name: _existing(twin) for name, twin in wanted_twins(classes).items()}
        self._classes = {**wanted, **classes} if assumed.rules.refuse_preemption else None

    def evaluate(self, pod: Mapping[str, Any], namespace: str, *, is_created: bool) -> Verdict:
        """Return the verdict about a pod or a pod template.

        `is_created`: it is an existing pod, so the scheduler may have written its node.
        """
        try:
            facts = pod_facts.read_pod_facts(_plain(pod, is_created), self._managed)
            read = objects.convert(pod, objects.PodObject)
            demand = read.spec.demand() if facts.needs_managed else {}
        except (msgspec.ValidationError, InvalidInput) as error:
            return Verdict(requests_devices=False, refusal=f"Fairgate: cannot read it: {error}")
        refusal = ""
        if facts.needs_managed:
            asked = hold.PodCreateRequest(
                namespace=namespace,
                caller=CALLER,
                demand=demand,
                has_device_claims=bool(read.spec.resource_claims),
                labels=facts.labels,
                annotations=facts.annotations,
                node_name=facts.node,
                priority_class=read.spec.priority_class_name,
                preemption_policy=read.spec.preemption_policy,
                too_large_message=facts.too_large_message,
                trusts_stamp=not is_created,
            )
            owner = hold.NamespaceOwner(TenantName(namespace))
            verdict = hold.decide_hold(asked, owner, self._managed, self._classes)
            refusal = verdict.message if isinstance(verdict, hold.DenyDecision) else ""
            facts = self._as_held(facts)
        guard = self._guard
        found = (
            refusal
            or guard.check_create(facts, CALLER)
            or guard.check_anti_affinity(facts, namespace)
        )
        return Verdict(facts.needs_managed, found or "")

    def _as_held(self, facts: PodFacts) -> PodFacts:
        """Return the pod as the webhook would change it."""
        return replace(
            facts,
            gates=(GATE,),
            labels=LABELS,
            annotations=STAMPS,
            preemption=NEVER,
            scheduler=self._scheduler,
        )


def _plain(pod: Mapping[str, Any], is_created: bool) -> dict[str, Any]:
    """Return a pod without the fields that Fairgate and the scheduler wrote on it."""
    spec = dict(pod.get("spec") or {})
    metadata = dict(pod.get("metadata") or {})
    if is_created:
        spec.pop("nodeName", None)
        for key in ("labels", "annotations"):
            written = metadata.get(key) or {}
            metadata[key] = {k: v for k, v in written.items() if not k.startswith(KEY_PREFIX)}
    gates = [each for each in spec.get("schedulingGates") or () if each.get("name") != GATE]
    spec["schedulingGates"] = gates
    return {"metadata": metadata, "spec": spec}


def _existing(twin: Twin) -> PriorityClass:
    return PriorityClass(twin.name, twin.value, never_preempts=True, is_ours=True)
