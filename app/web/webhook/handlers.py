"""Handlers of the webhook paths: each turns an admission request into a decision.

They use only the view in memory. The rules are in `core.admission`: `hold`, `validation`,
`pod_templates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.admission import changed_by, hold, unsatisfiable
from app.core.admission.hold import (
    DenyDecision,
    HoldDecision,
    HoldVerdict,
    IgnoreDecision,
    PatchDecision,
)
from app.core.admission.pod_templates import (
    TemplateKind,
    read_stamps,
    stamp_templates,
    template_warnings,
)
from app.core.admission.priority_class_twins import restore_twin_patch
from app.core.admission.resizes import Resize, refuse_resize
from app.core.admission.submitters import NO_OWNER, Kinds, OwnerAnswer, OwnerRef, controller_of
from app.core.admission.validation import BIND, PodValidator, tenant_refusal
from app.core.errors import InvalidQuantity
from app.core.model import PoolName, Resource, UserName
from app.core.placement.scheduler_hints import may_pack
from app.core.podspec.annotations import named_placement, named_pools
from app.core.podspec.size_limits import size_limit_message
from app.core.quantities import ManagedResources
from app.core.release_patch import Patch
from app.core.well_known import ANNOTATION_SUBMITTER, GATE
from app.k8s_types import objects
from app.k8s_types.list_sizes import sizes_of
from app.web.webhook import pod_facts
from app.web.webhook.admission_review import Request
from app.web.webhook.cache import WebhookCache

NOT_READY = (
    "Fairgate: it has just started, so it does not know the tenants yet; try again in a moment."
)
STALE = "Fairgate: its copy of the Pools may be outdated; try again in a moment."
NO_OBJECT = "Fairgate: the review holds no object to judge."
UNREADABLE = "Fairgate: cannot read what this pod asks for: {}"
SIGNED = {("fairgate.io", kind) for kind in ("tenants", "pools", "policies")}
"""Resources whose author is recorded."""

HELD = ("pods", "bindings", "resourceclaims")
"""Resources with rules that only apply in mode Enforce."""

POD = TemplateKind("", "pods", "metadata.annotations")
"""A pod has its stamp among its own annotations."""

OVERRULED = (
    "Fairgate: fairgate.io/submitter is written by Fairgate alone; the value given was not kept."
)


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """Dependencies that all handlers share."""

    view: WebhookCache
    managed: ManagedResources
    exempt: frozenset[str]
    guard: PodValidator
    template_kinds: Kinds
    is_ready: Callable[[], bool]

    def apply_mode(self, verdict: HoldVerdict, forged: Patch | None = None) -> HoldVerdict:
        """Return the decision for the Policy's mode.

        Observe mode leaves a pod unchanged, except that the patch `forged` removes forged
        annotations.
        """
        if not self.view.is_observing:
            return verdict
        match verdict:
            case HoldDecision():
                return PatchDecision(forged or [], enforced_decision="would-hold")
            case DenyDecision(_, message):
                warning = f"Not refused, only observed: {message}"
                return PatchDecision(forged or [], (warning,), "would-refuse")
            case _:
                return verdict


class HoldHandler:
    """Handler of /admit: holds, refuses or ignores pods at create, and corrects updates."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def owner_to_look_up(self, request: Request[objects.PodObject]) -> OwnerRef | None:
        """Return the owner to look up: that of a new pod without a trusted stamp."""
        pod, caller = request.object, UserName(request.user_info.username)
        if request.operation != "CREATE" or request.sub_resource or pod is None:
            return None
        stamped = ANNOTATION_SUBMITTER in (pod.metadata.annotations or {})
        if request.namespace in self._context.exempt or (
            stamped and self._context.guard.is_controller(caller)
        ):
            return None
        found = next((o for o in pod.metadata.owner_references or () if o.controller), None)
        return OwnerRef(found.api_version, found.kind, found.name, found.uid) if found else None

    def decide(
        self, request: Request[objects.PodObject], owner: OwnerAnswer = NO_OWNER
    ) -> HoldVerdict:
        """Return the decision. Dry runs need no exception, because it has no side effect."""
        context = self._context
        if request.sub_resource or request.namespace in context.exempt:
            return IgnoreDecision()
        if request.operation == "UPDATE" and request.object and request.old_object:
            return _update(request.old_object, request.object, request.user_info.username)
        if request.operation != "CREATE":
            return IgnoreDecision()
        pod = request.object
        if pod is None:
            return DenyDecision(422, NO_OBJECT)
        try:
            demand = pod.spec.demand()
        except InvalidQuantity as error:
            return DenyDecision(422, UNREADABLE.format(error))
        if not (pod.spec.resource_claims or context.managed.has_managed(demand)):
            return IgnoreDecision()
        if not context.is_ready():
            return DenyDecision(503, NOT_READY)
        candidate = self._create_request(request, pod, demand, owner)
        tenant, classes = (
            context.view.namespace_owner(request.namespace),
            context.view.priority_classes,
        )
        verdict = hold.decide_hold(candidate, tenant, context.managed, classes)
        if isinstance(verdict, HoldDecision):
            verdict = self._deny_if_unsatisfiable(request.namespace, pod, demand) or verdict
        return context.apply_mode(verdict, hold.forged_annotations_patch(candidate))

    def _deny_if_unsatisfiable(
        self, namespace: str, pod: objects.PodObject, demand: dict[Resource, int]
    ) -> DenyDecision | None:
        """Refuse a pod that can never start. Use only certain and fresh state."""
        required = unsatisfiable.PodRequirements(
            demand,
            pod.metadata.annotations or {},
            pod.spec.node_selector or {},
            claims=bool(pod.spec.resource_claims),
        )
        refused = unsatisfiable.refuse_invalid_annotations(required)
        known = self._context.view.known_pools(namespace)
        if refused is not None or known is None:
            return refused
        return unsatisfiable.refuse_unsatisfiable(required, known, self._context.managed)

    def _create_request(
        self,
        request: Request[objects.PodObject],
        pod: objects.PodObject,
        demand: dict[Resource, int],
        owner: OwnerAnswer,
    ) -> hold.PodCreateRequest:
        caller, group = UserName(request.user_info.username), pod.spec.scheduling_group
        return hold.PodCreateRequest(
            namespace=request.namespace,
            caller=caller,
            demand=demand,
            trusts_stamp=self._context.guard.is_controller(caller),
            owner=owner.submitter,
            has_device_claims=bool(pod.spec.resource_claims),
            gates=tuple(_gates(pod)),
            labels=pod.metadata.labels,
            annotations=pod.metadata.annotations,
            node_name=pod.spec.node_name,
            priority_class=pod.spec.priority_class_name,
            preemption_policy=pod.spec.preemption_policy,
            may_pack=self._should_pack(request.namespace, pod),
            has_affinity=pod.spec.affinity is not None,
            job=pod.metadata.job,
            pod_group=(group.pod_group_name or "") if group else "",
            too_large_message=size_limit_message(sizes_of(pod)),
        )

    def _should_pack(self, namespace: str, pod: objects.PodObject) -> bool:
        """Return whether to add pod affinity for packing.

        A pod with its own pod affinity or topology spread constraints is excluded.
        """
        spec, written, view = pod.spec, pod.metadata.annotations or {}, self._context.view
        own = spec.affinity and (spec.affinity.pod_affinity or spec.affinity.pod_anti_affinity)
        if own or spec.topology_spread_constraints:
            return False
        named = [PoolName(name) for name in named_pools(written)]
        tenant = view.tenancy.tenants.get(view.tenancy.tenant_of(namespace))
        allowed = tenant.pools if tenant else ()
        selector = spec.node_selector or {}
        return may_pack(view.pools, named_placement(written), named, selector, allowed)


def _update(old: objects.PodObject, new: objects.PodObject, caller: str) -> HoldVerdict:
    """Keep the twin of the pod's class, and name the caller if the gate is removed."""
    patch = restore_twin_patch(_priority(old), _priority(new))
    if GATE in _gates(old) and GATE not in _gates(new):
        patch += changed_by.gate_remover_patch(new.metadata.annotations, UserName(caller))
    return PatchDecision(patch) if patch else IgnoreDecision()


def _gates(pod: objects.PodObject) -> list[str]:
    return [each.name for each in pod.spec.scheduling_gates or ()]


def _priority(pod: objects.PodObject) -> tuple[str | None, str | None]:
    return pod.spec.priority_class_name, pod.spec.preemption_policy


class TemplateStampHandler:
    """Handler of /stamp: writes the submitter into the pod templates of objects."""

    def __init__(self, context: HandlerContext) -> None:
        self._context = context

    def owner_to_look_up(self, request: Request[Any]) -> OwnerRef | None:
        """Return the owner to look up: that of a new object of which no stamp is trusted."""
        context, caller = self._context, UserName(request.user_info.username)
        kinds = context.template_kinds.get((request.resource.group, request.resource.resource))
        if kinds is None or request.operation != "CREATE" or request.namespace in context.exempt:
            return None
        if context.guard.is_controller(caller) and any(read_stamps(kinds, request.object)):
            return None
        return controller_of(request.object)

    def decide(self, request: Request[Any], owner: OwnerAnswer = NO_OWNER) -> HoldVerdict:
        """Return the patch of the pod templates, or ignore the object."""
        context, caller = self._context, UserName(request.user_info.username)
        kinds = context.template_kinds.get((request.resource.group, request.resource.resource))
        if kinds is None or request.namespace in context.exempt or request.sub_resource:
            return IgnoreDecision()
        if context.guard.is_controller(caller) and owner.submitter is None:
            return IgnoreDecision()
        if request.object is None:
            return DenyDecision(422, NO_OBJECT)
        caller = owner.submitter or caller
        before = request.old_object if request.operation == "UPDATE" else None
        patch, overruled = stamp_templates(
            kinds, before, request.object, caller, self._requests_managed
        )
        warnings = template_warnings(kinds, request.object, self._requests_managed)
        return hold.PatchDecision(patch, ((OVERRULED,) if overruled else ()) + warnings)

    def _requests_managed(self, template: dict[str, Any]) -> bool:
        """Return whether a template may request a managed resource.

        A surplus stamp does no harm. A missing one lets a user charge the pods to the operator.
        """
        spec = template.get("spec")
        managed = self._context.managed
        return spec is not None and pod_facts.spec_requests_managed(spec, managed, if_invalid=True)


class ChangedByHandler:
    """Handler of /sign: records the caller in changes of Fairgate's objects."""

    def __init__(self, delegates: frozenset[str]) -> None:
        self._delegates = delegates

    def owner_to_look_up(self, _: Request[Any]) -> None:
        """Return None: a change has no owner."""

    def decide(self, request: Request[Any], _: OwnerAnswer = NO_OWNER) -> HoldVerdict:
        """Return a patch with the caller's name, or ignore the object."""
        caller = UserName(request.user_info.username)
        if request.sub_resource or request.object is None:
            return IgnoreDecision()
        before = request.old_object if request.operation == "UPDATE" else None
        if (request.resource.group, request.resource.resource) not in SIGNED:
            return IgnoreDecision()
        speaks = caller in self._delegates
        return hold.PatchDecision(changed_by.author_patch(before, request.object, caller, speaks))


class ValidateHandler:
    """Handler of /validate: checks objects and their changes, if the caller lacks a right."""

    def __init__(self, context: HandlerContext, releasers: frozenset[str]) -> None:
        self._context = context
        self._releasers = releasers

    def owner_to_look_up(self, request: Request[Any]) -> OwnerRef | None:
        """Return the owner of a new object with the stamp of another user than the caller."""
        caller = UserName(request.user_info.username)
        if request.operation != "CREATE" or self._context.guard.is_controller(caller):
            return None
        asked = (request.resource.group, request.resource.resource)
        kinds = (POD,) if asked == ("", "pods") else self._context.template_kinds.get(asked, ())
        if all(each in ("", caller) for each in read_stamps(kinds, request.object)):
            return None
        return controller_of(request.object)

    def decide(self, request: Request[Any], owner: OwnerAnswer = NO_OWNER) -> HoldVerdict:
        """Allow the request, or refuse it with the message of the violated rule."""
        caller = UserName(request.user_info.username)
        if request.namespace in self._context.exempt:
            return IgnoreDecision()
        try:
            sentence = self._find_violation(request, caller, owner.is_trusted)
        except msgspec.ValidationError as error:
            return DenyDecision(422, f"Fairgate: cannot read this object: {error}")
        except InvalidQuantity as error:
            return DenyDecision(422, UNREADABLE.format(error))
        verdict = DenyDecision(403, sentence) if sentence else IgnoreDecision()
        # Names and weights are protected in mode Observe, too: a forged value would count later.
        return self._context.apply_mode(verdict) if request.resource.resource in HELD else verdict

    def _find_violation(
        self, request: Request[Any], caller: UserName, names_owner: bool
    ) -> str | None:
        match request.resource.group, request.resource.resource, request.sub_resource:
            case ("", "pods", "binding") | ("", "bindings", _):
                return BIND.format(caller)
            case "", "pods", "eviction":
                return self._check_eviction(request, caller)
            case "", "pods", "resize":
                return self._check_resize(request) or self._check_pod(request, caller, names_owner)
            case "", "pods", _:
                return self._check_pod(request, caller, names_owner)
            case "resource.k8s.io", "resourceclaims", _:
                return self._check_claim(request, caller)
            case "fairgate.io", "tenants", _:
                return tenant_refusal(_tenant(request.old_object), _tenant(request.object))
            case group, resource, _:
                kinds = self._context.template_kinds.get((group, resource))
                if kinds is None:
                    return None
                before = read_stamps(kinds, request.old_object)
                after = read_stamps(kinds, request.object)
                return self._context.guard.check_template_stamps(before, after, caller, names_owner)

    def _check_pod(self, request: Request[Any], caller: UserName, names_owner: bool) -> str | None:
        context = self._context
        releases = self._may_release(request, caller)
        if request.operation == "DELETE":
            gone = pod_facts.read_pod_facts(request.old_object, context.managed)
            grace = request.options.grace_period_seconds if request.options else None
            return None if releases else context.guard.check_delete(gone, caller, grace)
        after = pod_facts.read_pod_facts(request.object, context.managed)
        if request.operation == "CREATE":
            guard = context.guard
            held = not context.view.is_observing
            refusal = guard.check_create(after, caller, names_owner, held=held)
            return refusal or guard.check_anti_affinity(after, request.namespace)
        before = pod_facts.read_pod_facts(request.old_object, context.managed)
        sentence = context.guard.check_update(before, after, caller, releases)
        touched = request.sub_resource == "ephemeralcontainers"
        if sentence is None and (touched or before.tolerated_taints != after.tolerated_taints):
            return context.guard.check_device_access(after)
        return sentence

    def _check_resize(self, request: Request[Any]) -> str | None:
        """Check a resize. A held pod counts too: it may be released before the growth is seen.

        Each container is charged the larger of its request and its node's allocation, before and
        after. So moving cpu from one container to another is growth until the node has applied it.
        """
        before = objects.convert(request.old_object, objects.PodObject)
        known = self._context.view.known_pools(request.namespace)
        if known is None:
            return STALE
        after = objects.convert(request.object, objects.PodObject)
        resize = Resize(before.demand(), before.spec.demand(), after.demand_of_new_spec())
        return refuse_resize(resize, known.pools, self._context.managed)

    def _check_eviction(self, request: Request[Any], caller: UserName) -> str | None:
        if self._may_release(request, caller):
            return None
        options = msgspec.convert(request.object, pod_facts.Eviction).delete_options
        grace = options.grace_period_seconds if options else None
        return self._context.guard.check_eviction(caller, grace)

    def _check_claim(self, request: Request[Any], caller: UserName) -> str | None:
        before = None
        if request.operation == "UPDATE":
            before = pod_facts.read_claim_facts(request.old_object)
        after = pod_facts.read_claim_facts(request.object)
        return self._context.guard.check_claim(
            before, after, caller, self._may_release(request, caller)
        )

    def _may_release(self, request: Request[Any], caller: UserName) -> bool:
        return caller in self._releasers or "system:masters" in request.user_info.groups


def _tenant(document: Any) -> dict[str, Any]:
    """Return the spec of a Tenant, and the metadata that can delete or keep it."""
    found = document.get("metadata") if isinstance(document, dict) else None
    meta = found if isinstance(found, dict) else {}
    links = {key: meta[key] for key in ("ownerReferences", "finalizers") if meta.get(key)}
    return _spec(document) | links


def _spec(document: Any) -> dict[str, Any]:
    found = document.get("spec") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
