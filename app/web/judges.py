"""From a readable review to a verdict: one judge for each path of the webhook.

They look nothing up beyond the view in memory. The rules are in `core.admission`: `gate`, `guard`
and `templates`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from app import wire
from app.core.admission import authors, gate, prospects
from app.core.admission.cautions import cautions
from app.core.admission.gate import Hold, Ignore, Mend, Patch, Refuse, Verdict
from app.core.admission.guard import BIND, Guard, governed
from app.core.admission.templates import Kind, stamp, stamps
from app.core.asks.annotations import named_pools
from app.core.asks.levels import named_style
from app.core.errors import InvalidQuantity
from app.core.model import PoolName, Resource, UserName
from app.core.places.steering import may_pack
from app.core.resources import ManagedResources
from app.web import sheet
from app.web.review import Request
from app.web.view import View

NOT_READY = "Fairgate has just started and does not know the tenants yet; try again in a moment."
NO_OBJECT = "Fairgate: the review holds no object to judge."
UNREADABLE = "Fairgate cannot read what this pod asks for: {}"
HELD = ("pods", "bindings")
"""Resources whose rules only hold while the policy enforces."""

OVERRULED = (
    "Fairgate: fairgate.io/submitter is written by Fairgate alone; the value given was not kept."
)


@dataclass(frozen=True, slots=True)
class Ground:
    """What all judges share."""

    view: View
    managed: ManagedResources
    exempt: frozenset[str]
    guard: Guard
    kinds: dict[tuple[str, str], Kind]
    ready: Callable[[], bool]

    def observed(self, verdict: Verdict, forged: Patch | None = None) -> Verdict:
        """Return a verdict as the mode of the policy has it.

        Who only observes changes nothing, but that what is `forged` goes all the same.
        """
        if not self.view.observing:
            return verdict
        match verdict:
            case Hold():
                return Mend(forged or [], observed="would-hold")
            case Refuse(_, message):
                warning = f"Not refused, only observed: {message}"
                return Mend(forged or [], (warning,), "would-refuse")
            case _:
                return verdict


class Holding:
    """Judges pods about to be created: held, refused, or none of our business."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def judge(self, request: Request[wire.Pod]) -> Verdict:
        """Decide. A dry run is judged like any other request: nothing here has an effect."""
        ground = self._ground
        if request.sub_resource or request.namespace in ground.exempt:
            return Ignore()
        if request.operation == "UPDATE" and request.object and request.old_object:
            return gate.judge_change(_priority(request.old_object), _priority(request.object))
        if request.operation != "CREATE":
            return Ignore()
        pod = request.object
        if pod is None:
            return Refuse(422, NO_OBJECT)
        try:
            demand = pod.spec.demand()
        except InvalidQuantity as error:
            return Refuse(422, UNREADABLE.format(error))
        if not (pod.spec.resource_claims or ground.managed.asked(demand)):
            return Ignore()
        if not ground.ready():
            return Refuse(503, NOT_READY)
        candidate = self._candidate(request, pod, demand)
        owner, classes = ground.view.owner_of(request.namespace), ground.view.classes
        verdict = gate.judge(candidate, owner, ground.managed, classes)
        if isinstance(verdict, Hold):
            verdict = self._hopeless(request.namespace, pod, demand) or verdict
        return ground.observed(verdict, gate.forged(candidate))

    def _hopeless(
        self, namespace: str, pod: wire.Pod, demand: dict[Resource, int]
    ) -> Refuse | None:
        """Refuse what would wait for ever, by what is known for certain and not old."""
        wish = prospects.Wish(
            demand,
            pod.metadata.annotations or {},
            pod.spec.node_selector or {},
            claims=bool(pod.spec.resource_claims),
        )
        refused = prospects.unreadable(wish)
        known = self._ground.view.prospects(namespace)
        if refused is not None or known is None:
            return refused
        return prospects.hopeless(wish, known, self._ground.managed)

    def _candidate(
        self, request: Request[wire.Pod], pod: wire.Pod, demand: dict[Resource, int]
    ) -> gate.Candidate:
        caller, group = UserName(request.user_info.username), pod.spec.scheduling_group
        return gate.Candidate(
            namespace=request.namespace,
            caller=caller,
            demand=demand,
            believed=self._ground.guard.is_controller(caller),
            claims=bool(pod.spec.resource_claims),
            gates=tuple([each.name for each in pod.spec.scheduling_gates or ()]),
            labels=pod.metadata.labels,
            annotations=pod.metadata.annotations,
            node_name=pod.spec.node_name,
            priority_class=pod.spec.priority_class_name,
            preemption_policy=pod.spec.preemption_policy,
            packs=self._packs(request.namespace, pod),
            affinity=pod.spec.affinity is not None,
            job=pod.metadata.job,
            group=(group.pod_group_name or "") if group else "",
        )

    def _packs(self, namespace: str, pod: wire.Pod) -> bool:
        """Tell whether a pod is to be pulled to others: it may, and says nothing of its own."""
        spec, written, view = pod.spec, pod.metadata.annotations or {}, self._ground.view
        own = spec.affinity and (spec.affinity.pod_affinity or spec.affinity.pod_anti_affinity)
        if own or spec.topology_spread_constraints:
            return False
        named = [PoolName(name) for name in named_pools(written)]
        tenant = view.tenancy.tenants.get(view.tenancy.tenant_of(namespace))
        allowed = tenant.pools if tenant else ()
        selector = spec.node_selector or {}
        return may_pack(view.pools, named_style(written), named, selector, allowed)


def _priority(pod: wire.Pod) -> gate.Priority:
    return pod.spec.priority_class_name, pod.spec.preemption_policy


class Stamping:
    """Judges objects that carry pod templates: whose they are is written into the templates."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def judge(self, request: Request[Any]) -> Verdict:
        """Stamp, or leave alone."""
        ground, caller = self._ground, UserName(request.user_info.username)
        kind = ground.kinds.get((request.resource.group, request.resource.resource))
        if kind is None or request.namespace in ground.exempt or request.sub_resource:
            return Ignore()
        if ground.guard.is_controller(caller):
            return Ignore()
        if request.object is None:
            return Refuse(422, NO_OBJECT)
        before = request.old_object if request.operation == "UPDATE" else None
        patch, overruled = stamp(kind, before, request.object, caller, self._asks)
        warnings = cautions(kind, request.object, self._asks)
        return gate.Mend(patch, ((OVERRULED,) if overruled else ()) + warnings)

    def _asks(self, template: dict[str, Any]) -> bool:
        """Tell whether a template asks for a managed resource; a broken one is not for us."""
        try:
            spec = msgspec.convert(template.get("spec"), wire.PodSpec)
            return sheet.asks(spec, self._ground.managed)
        except (msgspec.ValidationError, InvalidQuantity):
            return False


class Authorship:
    """Judges changes of our resources, and gates taken off by hand: signs them for the caller."""

    def __init__(self, ground: Ground, speakers: frozenset[str]) -> None:
        self._ground = ground
        self._speakers = speakers

    def judge(self, request: Request[Any]) -> Verdict:
        """Write the caller's name, or leave alone."""
        caller = UserName(request.user_info.username)
        if request.sub_resource or request.object is None:
            return Ignore()
        before = request.old_object if request.operation == "UPDATE" else None
        match request.resource.group, request.resource.resource:
            case "fairgate.io", "tenants" | "pools" | "policies":
                speaks = caller in self._speakers
                return gate.Mend(authors.authored(before, request.object, caller, speaks))
            case "", "pods" if request.namespace not in self._ground.exempt:
                return gate.Mend(authors.freed(before, request.object, caller))
            case _:
                return Ignore()


class Validation:
    """Judges what would be stored, and changes of it. Asked only where a right is lacking."""

    def __init__(self, ground: Ground, releasers: frozenset[str]) -> None:
        self._ground = ground
        self._releasers = releasers

    def judge(self, request: Request[Any]) -> Verdict:
        """Allow it, or refuse it with the rule's sentence."""
        caller = UserName(request.user_info.username)
        if request.namespace in self._ground.exempt:
            return Ignore()
        try:
            sentence = self._sentence(request, caller)
        except msgspec.ValidationError as error:
            return Refuse(422, f"Fairgate cannot read this object: {error}")
        except InvalidQuantity as error:
            return Refuse(422, UNREADABLE.format(error))
        verdict = Refuse(403, sentence) if sentence else Ignore()
        # Names and weights are guarded while we observe, too: what is forged now counts later.
        return self._ground.observed(verdict) if request.resource.resource in HELD else verdict

    def _sentence(self, request: Request[Any], caller: UserName) -> str | None:
        match request.resource.group, request.resource.resource, request.sub_resource:
            case ("", "pods", "binding") | ("", "bindings", _):
                return BIND.format(caller)
            case "", "pods", _:
                return self._pod(request, caller)
            case "fairgate.io", "tenants", _:
                return governed(_spec(request.old_object), _spec(request.object))
            case group, resource, _:
                kind = self._ground.kinds.get((group, resource))
                if kind is None:
                    return None
                before = stamps(kind, request.old_object)
                return self._ground.guard.stamped(before, stamps(kind, request.object), caller)

    def _pod(self, request: Request[Any], caller: UserName) -> str | None:
        ground = self._ground
        after = sheet.sheet_of(request.object, ground.managed)
        if request.operation == "CREATE":
            return ground.guard.created(after, caller)
        before = sheet.sheet_of(request.old_object, ground.managed)
        releases = caller in self._releasers or "system:masters" in request.user_info.groups
        sentence = ground.guard.changed(before, after, caller, releases)
        touched = request.sub_resource == "ephemeralcontainers"
        if sentence is None and (touched or before.tolerated != after.tolerated):
            return ground.guard.reached(after)
        return sentence


def _spec(document: Any) -> dict[str, Any]:
    found = document.get("spec") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}
