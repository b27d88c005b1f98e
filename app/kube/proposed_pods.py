"""Converts pods that a caller wants to create. Implements `ports.forecasts.ProposalReader`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from app.core.errors import InvalidInput
from app.core.events import PodObserved
from app.core.model import Millis, Pod, Uid, UserName
from app.core.podspec.annotations import LARGEST_GANG
from app.core.podspec.pod_groups import LABEL_JOB_SET, SIZE_FROM_GROUP
from app.core.podspec.resource_claims import ResourceClaim
from app.core.quantities import ManagedResources
from app.core.well_known import ANNOTATION_RELEASE, ANNOTATION_SUBMITTER, GATE, RELEASE_HELD
from app.k8s_types import objects
from app.k8s_types.device_objects import ResourceClaimObject
from app.kube.convert import Pods
from app.kube.convert_devices import read_claim
from app.ports.forecasts import Proposal

MOST_REQUESTS = 32
"""Maximum of requests in a ResourceClaim. The API server has the same bound."""

MOST_ALTERNATIVES = 8
"""Maximum of alternatives of such a request."""

Charge = Callable[[Pod, Mapping[str, ResourceClaim], set[str]], Pod]
"""`ClaimCharges.charge_proposed` of the engine."""


class ProposedPods:
    """Reads proposed pods as the watch would read them after their creation."""

    def __init__(self, managed: ManagedResources, exempt: frozenset[str], charge: Charge) -> None:
        self._pods = Pods(managed, exempt)
        self._charge = charge

    def read(self, proposal: Proposal, user: UserName, at: Millis) -> tuple[Pod, ...]:
        """Return the held pods of a proposal. Empty: Fairgate would hold none of them.

        Raises InvalidInput for documents that are not pods, claims that do not exist, and lists
        that the API server or the webhook would refuse for their length.
        """
        found: list[Pod] = []
        shared: set[str] = set()
        for part, (count, document, specs) in enumerate(proposal.pods):
            pod = self._pod(document, proposal, user, at)
            if pod is None:
                continue
            if proposal.in_order and pod.gang and pod.replicated_job:
                pod = replace(pod, gang=f"{pod.gang}/{pod.replicated_job}", replicated_job="")
            claims = _claims(specs, proposal.namespace, at)
            asking = (
                each for each in self._copies(pod, count, claims, shared) if each.needs_managed
            )
            found += (_copy(each, part, number) for number, each in enumerate(asking))
        sizes: dict[str, int] = {}
        for pod in found:
            sizes[pod.gang] = sizes.get(pod.gang, 0) + 1
        return tuple(
            replace(pod, gang_size=min(sizes[pod.gang], LARGEST_GANG))
            if pod.gang and pod.gang_size == SIZE_FROM_GROUP
            else pod
            for pod in found
        )

    def _copies(
        self, pod: Pod, count: int, claims: Mapping[str, ResourceClaim], shared: set[str]
    ) -> list[Pod]:
        """Return the charged copies of a pod. Only the first one is charged for shared claims."""
        if pod.container_requests is None:
            return [pod] * count
        # Two charges at most, because one reads all requests of all claims.
        charged = [self._charge(pod, claims, shared) for _ in range(min(count, 2))]
        return charged[:1] + charged[-1:] * (count - 1)

    def _pod(
        self, document: Mapping[str, Any], proposal: Proposal, user: UserName, at: Millis
    ) -> Pod | None:
        try:
            pod = objects.convert(document, objects.PodObject)
            event = self._pods.read(_held(pod, proposal, user, at), at)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidInput(f"This is not a pod: {error}.") from error
        if not isinstance(event, PodObserved):
            return None
        if event.pod.too_large:
            raise InvalidInput(event.pod.too_large.removeprefix("Fairgate: "))
        return event.pod


def _claims(specs: Mapping[str, Any], namespace: str, at: Millis) -> dict[str, ResourceClaim]:
    """Return the new claims by entry. Raises InvalidInput."""
    found = {}
    for entry, spec in specs.items():
        meta = {"name": entry, "namespace": namespace, "uid": ""}
        try:
            claim = msgspec.convert({"metadata": meta, "spec": spec}, ResourceClaimObject)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidInput(f"This is not the spec of a ResourceClaim: {error}.") from error
        new = read_claim(claim, at).claim
        if len(new.requests) > MOST_REQUESTS or any(
            len(alternatives) > MOST_ALTERNATIVES for alternatives in new.requests
        ):
            raise InvalidInput(
                f"The claim of entry {entry[:80]} may have at most {MOST_REQUESTS} requests "
                f"with {MOST_ALTERNATIVES} alternatives each."
            )
        found[entry] = new
    return found


def _copy(pod: Pod, part: int, number: int) -> Pod:
    # After all real uids: pods of one second are ordered by uid, and this one is the newest.
    uid = Uid(f"~{part:03}-{number:05}")
    return replace(pod, uid=uid, name=f"{pod.name}-{number}")


def _held(
    pod: objects.PodObject, proposal: Proposal, user: UserName, at: Millis
) -> objects.PodObject:
    """Return a pod with the fields that the webhook and the controller of its kind write."""
    meta, spec = pod.metadata, pod.spec
    labels = dict(meta.labels or {})
    owners = []
    if proposal.kind != "Pod":
        kind, name = proposal.kind, proposal.name
        if kind == "JobSet":  # it creates Jobs, and they create the pods
            labels[LABEL_JOB_SET] = name
            kind, name = "Job", f"{name}-0"
        owners = [objects.OwnerReference(kind=kind, name=name, uid=name, controller=True)]
    stamps = {ANNOTATION_SUBMITTER: user, ANNOTATION_RELEASE: RELEASE_HELD}
    others = [each for each in spec.scheduling_gates or () if each.name != GATE]
    return objects.PodObject(
        metadata=objects.OwnedMetadata(
            name=proposal.name or meta.name or "pod",
            namespace=proposal.namespace,
            uid="proposed",
            creation_timestamp=datetime.fromtimestamp(at // 1000, UTC).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
            labels=labels,
            annotations={**(meta.annotations or {}), **stamps},
            owner_references=owners,
        ),
        spec=msgspec.structs.replace(
            spec, node_name=None, scheduling_gates=[objects.Gate(GATE), *others]
        ),
        status=objects.PodStatus(qos_class=pod.status.qos_class),
    )
