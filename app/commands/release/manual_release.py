"""Releases held pods with the caller's own credentials, out of order and without a capacity check.

Removes only Fairgate's gate, never another one. Prints no output.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from app.core.effects import ClaimAddress, EmitEvent, EventReason, PodRef
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.lifecycle.claim_protection import SECURE_MS
from app.core.model import GrantedClaim, Uid
from app.core.podspec.granted_claims import write_grants
from app.core.podspec.resource_claims import FINALIZER
from app.core.release_patch import Patch
from app.core.well_known import ANNOTATION_CLAIMS, ANNOTATION_RELEASE, GATE, RELEASE_ADOPTED
from app.k8s_types import objects
from app.kube.answers import decode_answer
from app.kube.claim_finalizers import CLAIMS, ClaimFinalizers, claim_path, removal_metadata
from app.kube.client import JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Client
from app.kube.convert_custom import POLICY
from app.kube.enforcement_probes import OWN_GATE
from app.kube.event_recorder import event_body

PAGE = 500
TRIES = 5
SERVER_SECONDS = 5
"""Time limit of the API server for one patch."""

ALL_CLAIMS = f"{CLAIMS}/resourceclaims"
POLICIES = "/apis/fairgate.io/v1alpha1/policies"

T = TypeVar("T")


class _Spec(objects.KubeStruct, frozen=True):
    scheduling_gates: list[objects.Gate] | None = None
    resource_claims: list[objects.PodClaim] | None = None


class _Status(objects.KubeStruct, frozen=True):
    resource_claim_statuses: list[objects.PodClaim] | None = None


class _Pod(objects.KubeStruct, frozen=True):
    metadata: objects.Metadata = objects.Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Review(objects.KubeStruct, frozen=True):
    status: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GatedPod:
    """A held pod. `gate_index` is the index of Fairgate's gate, `other_gates` are its other gates.

    `claims` are the names of its resource claims, `protected_claims` the protected ones.
    """

    ref: PodRef
    gate_index: int
    other_gates: tuple[str, ...]
    has_annotations: bool
    claims: tuple[str, ...] = ()
    protected_claims: tuple[GrantedClaim, ...] = ()

    @property
    def name(self) -> str:
        """Return namespace and name of the pod."""
        return f"{self.ref.namespace}/{self.ref.name}"


class ManualReleaseResult(Enum):
    """Result of a release by hand."""

    RELEASED = "released"
    FREE = "not held"
    """The gate or the pod was gone already."""
    REFUSED = "refused"
    UNKNOWN = "no answer"


@dataclass(frozen=True, slots=True)
class ManualReleaseOutcome:
    """Result for one pod. `why` is the reason if it was not released."""

    pod: GatedPod
    result: ManualReleaseResult
    why: str = ""


class ByHand:
    """Actions on held pods for a user with the verb `release` on `podgates.fairgate.io`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._finalizers = ClaimFinalizers(client)

    async def read_user_name(self) -> str:
        """Return the caller's user name in the API server, "" if it does not report one."""
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        try:
            status = await self._post_review(
                path, "authentication.k8s.io/v1", "SelfSubjectReview", {}
            )
        except ClusterRefused:  # an API server older than 1.28
            return ""
        return str(status.get("userInfo", {}).get("username", ""))

    async def may_release(self, namespace: str) -> bool:
        """Return whether the caller may release pods of a namespace. "" means all namespaces."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        asked = {"group": "fairgate.io", "resource": "podgates", "verb": "release"}
        spec = {"resourceAttributes": asked | {"namespace": namespace}}
        kind = "SelfSubjectAccessReview"
        status = await self._post_review(path, "authorization.k8s.io/v1", kind, {"spec": spec})
        return status.get("allowed") is True and status.get("denied") is not True

    async def find_held(self, namespace: str, name: str) -> GatedPod | None:
        """Return a pod if it is held, else None. Raises ClusterRefused (404) if it is absent."""
        body = await self._client.request("GET", _path(namespace, name))
        return _held(decode_answer(body, _Pod))

    async def list_held(self) -> AsyncIterator[list[GatedPod]]:
        """Yield every held pod of the cluster, page by page, in the order of the API server."""
        # A pod with a gate has no node. Its phase may be faked.
        query = [("limit", str(PAGE)), ("fieldSelector", "spec.nodeName=")]
        token = ""
        while True:
            more = [("continue", token)] if token else []
            try:
                body = await self._client.request(
                    "GET", "/api/v1/pods", query=[*query, *more], timeout=60.0
                )
            except ClusterRefused as error:
                if error.status == 410 and token:
                    return  # the list expired; the next call returns the rest
                raise
            page = decode_answer(body, objects.ListPage[_Pod])
            yield [held for each in page.items or () if (held := _held(each))]
            token = page.metadata.continue_
            if not token:
                return

    async def protect_claims(self, pod: GatedPod) -> tuple[GatedPod, list[str]]:
        """Add the finalizer to the claims of a pod, so that it cannot get other claims.

        Return the pod to release, and for each unprotected claim the reason.
        """
        claims, failed, late = list[ClaimAddress](), list[str](), False
        for name in pod.claims:
            at = claim_path(pod.ref.namespace, name)
            try:
                body = await self._client.request("GET", at)
                meta = decode_answer(body, objects.MetadataOnly).metadata
                claim = ClaimAddress(Uid(meta.uid), pod.ref.namespace, name)
                await self._finalizers.protect(claim)
                late |= FINALIZER not in (meta.finalizers or ())
                claims.append(claim)
            except ClusterError as error:
                failed.append(f"resource claim {name}: {error}")
        if late:
            await asyncio.sleep(SECURE_MS / 1000)
        granted = []
        for claim in claims:
            try:
                await self._finalizers.stamp_release(claim, RELEASE_ADOPTED)
                granted.append(GrantedClaim(claim.name, claim.uid))
            except ClusterError as error:
                failed.append(f"resource claim {claim.name}: {error}")
        return replace(pod, protected_claims=tuple(granted)), failed

    async def release(self, pod: GatedPod) -> ManualReleaseOutcome:
        """Remove Fairgate's gate from a pod. Retry if other clients change the pod meanwhile."""
        last, retry_after = ManualReleaseOutcome(pod, ManualReleaseResult.UNKNOWN), 0.0
        for attempt in range(TRIES):
            if attempt:
                backoff = random.uniform(0.05, 0.1) * 2**attempt  # noqa: S311
                await asyncio.sleep(max(backoff, min(retry_after, 10.0)))
            last, seen, retry_after = await self._try_release(pod)
            if seen is None:
                return last
            pod = seen
        return last

    async def _try_release(
        self, pod: GatedPod
    ) -> tuple[ManualReleaseOutcome, GatedPod | None, float]:
        """Try once. Return the result, the pod to retry with, and the seconds to wait before."""
        again, retry_after = True, 0.0
        try:
            await self._patch(pod)
            return ManualReleaseOutcome(pod, ManualReleaseResult.RELEASED), None, 0.0
        except ClusterUnavailable as error:  # it may have taken effect: read the pod
            last = ManualReleaseOutcome(pod, ManualReleaseResult.UNKNOWN, str(error))
        except ClusterRefused as error:
            last, retry_after = (
                ManualReleaseOutcome(pod, ManualReleaseResult.REFUSED, str(error)),
                error.retry_after or 0.0,
            )
            if error.status not in (404, 409, 422, 429):
                return last, None, 0.0
            again = error.status != 422
        try:
            seen = await self.find_held(pod.ref.namespace, pod.ref.name)
        except ClusterUnavailable:
            return last, pod, retry_after
        except ClusterRefused as error:
            gone = error.status == 404
            return ManualReleaseOutcome(pod, ManualReleaseResult.FREE) if gone else last, None, 0.0
        if seen is not None:
            seen = replace(seen, protected_claims=pod.protected_claims)
        if seen is None and last.result is ManualReleaseResult.UNKNOWN:
            return ManualReleaseOutcome(pod, ManualReleaseResult.RELEASED), None, 0.0
        if seen is None or seen.ref.uid != pod.ref.uid:
            return ManualReleaseOutcome(pod, ManualReleaseResult.FREE), None, 0.0
        # A 422 for an unchanged pod will be a 422 the next time, too.
        return last, seen if again or seen != pod else None, retry_after

    async def set_observe_mode(self) -> bool:
        """Set mode Observe, so that no new pod is held. False if there is no Policy CRD."""
        spec = {"spec": {"mode": "Observe"}}
        path = f"{POLICIES}/{POLICY}"
        try:
            await self._client.request("PATCH", path, body=spec, content_type=MERGE_PATCH)
        except ClusterRefused as error:
            if error.status != 404:
                raise
        else:
            return True
        meta = {"apiVersion": "fairgate.io/v1alpha1", "kind": "Policy"}
        body = {**meta, "metadata": {"name": POLICY}, **spec}
        try:
            await self._client.request("POST", POLICIES, body=body)
        except ClusterRefused as error:
            if error.status == 404:
                return False
            if error.status == 409:  # another client created it just now
                return await self.set_observe_mode()
            raise
        return True

    async def protected_claims(self) -> list[ClaimAddress]:
        """Return the resource claims with Fairgate's finalizer, empty on an old server."""
        found: list[ClaimAddress] = []
        token = ""
        while True:
            query = [("limit", str(PAGE)), *([("continue", token)] if token else [])]
            try:
                body = await self._client.request("GET", ALL_CLAIMS, query=query, timeout=60.0)
            except ClusterRefused as error:
                if error.status == 404:
                    return []
                raise
            page = decode_answer(body, objects.ListPage[objects.MetadataOnly])
            for meta in (each.metadata for each in page.items or ()):
                if FINALIZER in (meta.finalizers or ()):
                    found.append(ClaimAddress(Uid(meta.uid), meta.namespace, meta.name))
            token = page.metadata.continue_
            if not token:
                return found

    async def free_claim(self, claim: ClaimAddress) -> None:
        """Remove Fairgate's finalizer. A deleted claim is no error. Raises ClusterError."""
        try:
            await self._client.request(
                "PATCH",
                claim_path(claim.namespace, claim.name),
                body={"metadata": removal_metadata(claim.uid)},
                content_type=STRATEGIC_PATCH,
            )
        except ClusterRefused as error:
            if error.status != 404:
                raise

    async def emit_event(self, pod: GatedPod, message: str) -> None:
        """Emit a Kubernetes event on a pod. Raises ClusterError."""
        path = f"/api/v1/namespaces/{quote(pod.ref.namespace, safe='')}/events"
        body = event_body(EmitEvent(pod.ref, EventReason.RELEASED, message))
        await self._client.request("POST", path, body=body)

    async def _patch(self, pod: GatedPod) -> None:
        await self._client.request(
            "PATCH",
            _path(pod.ref.namespace, pod.ref.name),
            query=[("timeout", f"{SERVER_SECONDS}s")],
            body=release_patch(pod),
            content_type=JSON_PATCH,
            timeout=SERVER_SECONDS + 1.0,
        )

    async def _post_review(
        self, path: str, version: str, kind: str, fields: dict[str, Any]
    ) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, **fields}
        return decode_answer(await self._client.request("POST", path, body=body), _Review).status


def release_patch(pod: GatedPod) -> Patch:
    """Return the patch that removes only Fairgate's gate and marks the pod as adopted."""
    gate, written = f"/spec/schedulingGates/{pod.gate_index}", {ANNOTATION_RELEASE: RELEASE_ADOPTED}
    if pod.protected_claims:
        written[ANNOTATION_CLAIMS] = write_grants(pod.protected_claims)
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid},
        {"op": "test", "path": gate, "value": {"name": GATE}},
    ]
    if pod.has_annotations:
        for key, value in written.items():
            path = f"/metadata/annotations/{key.replace('/', '~1')}"
            patch.append({"op": "add", "path": path, "value": value})
    else:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": written})
    patch.append({"op": "remove", "path": gate})
    return patch


def _held(pod: _Pod) -> GatedPod | None:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if GATE not in gates or OWN_GATE in gates:
        return None  # the pod of the canary is never released
    meta = pod.metadata
    return GatedPod(
        PodRef(Uid(meta.uid), meta.namespace, meta.name),
        gates.index(GATE),
        tuple(gate for gate in gates if gate != GATE),
        meta.annotations is not None,
        _claims(pod),
    )


def _claims(pod: _Pod) -> tuple[str, ...]:
    """Return the names of a pod's claims. Its status names the claims made from templates."""
    listed = (*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ()))
    return tuple(dict.fromkeys(name for each in listed if (name := each.resource_claim_name)))


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
