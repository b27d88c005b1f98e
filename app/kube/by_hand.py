"""Releases held pods as a person, with that person's own credentials: break glass.

Takes only our own gate away, never another's, and asks for no turn and no room. Prints nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from app import wire
from app.core.admission.gate import Patch
from app.core.admission.keys import OURS
from app.core.effects import Notice, PodRef, Tell
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import ADOPTED, ANNOTATION_RELEASE, GATE, Uid
from app.kube.announce import event
from app.kube.client import JSON_PATCH, MERGE_PATCH, Client
from app.kube.custom import POLICY
from app.kube.trials import OWN_GATE

PAGE = 500
TRIES = 5
SERVER_SECONDS = 5
"""What the API server may spend on one patch."""

POLICIES = "/apis/fairgate.io/v1alpha1/policies"

T = TypeVar("T")


class _Spec(wire.Wire, frozen=True):
    scheduling_gates: list[wire.Gate] | None = None


class _Pod(wire.Wire, frozen=True):
    metadata: wire.Metadata = wire.Metadata()
    spec: _Spec = _Spec()


class _Review(wire.Wire, frozen=True):
    status: dict[str, Any] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Held:
    """A pod behind our gate: which of its gates that is, and what others it carries."""

    ref: PodRef
    gate: int
    others: tuple[str, ...]
    has_annotations: bool

    @property
    def name(self) -> str:
        """Return its namespace and name."""
        return f"{self.ref.namespace}/{self.ref.name}"


class Result(Enum):
    """What became of a release by hand."""

    RELEASED = "released"
    FREE = "not held"
    """Its gate was gone when we came, or the pod was."""
    REFUSED = "refused"
    UNKNOWN = "no answer"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one pod; `why` it was not released."""

    pod: Held
    result: Result
    why: str = ""


class ByHand:
    """What a person with the right `release` on `podgates.fairgate.io` may do to held pods."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def who(self) -> str:
        """Return the name that the API server knows the caller by; "" if it does not tell."""
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        try:
            status = await self._ask(path, "authentication.k8s.io/v1", "SelfSubjectReview", {})
        except ClusterRefused:  # an API server before 1.28
            return ""
        return str(status.get("userInfo", {}).get("username", ""))

    async def may_release(self, namespace: str) -> bool:
        """Tell whether the caller may release pods of a namespace; "": of every one."""
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        asked = {"group": "fairgate.io", "resource": "podgates", "verb": "release"}
        spec = {"resourceAttributes": asked | {"namespace": namespace}}
        kind = "SelfSubjectAccessReview"
        status = await self._ask(path, "authorization.k8s.io/v1", kind, {"spec": spec})
        return status.get("allowed") is True and status.get("denied") is not True

    async def find(self, namespace: str, name: str) -> Held | None:
        """Return a pod if it is held, None if it is not. Raises ClusterRefused, 404: no such."""
        body = await self._client.request("GET", _path(namespace, name))
        return _held(_decode(body, _Pod))

    async def held(self) -> AsyncIterator[list[Held]]:
        """Give every held pod of the cluster, page by page, as the API server lists them."""
        # Whoever has a gate has no node; its phase may be faked by others.
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
                    return  # the list grew too old; whoever asks again gets the rest
                raise
            page = _decode(body, wire.Page[_Pod])
            yield [held for each in page.items or () if (held := _held(each))]
            token = page.metadata.continue_
            if not token:
                return

    async def release(self, pod: Held) -> Outcome:
        """Take our gate off a pod, whatever else changes it meanwhile."""
        last, patience = Outcome(pod, Result.UNKNOWN), 0.0
        for attempt in range(TRIES):
            if attempt:
                backoff = random.uniform(0.05, 0.1) * 2**attempt  # noqa: S311
                await asyncio.sleep(max(backoff, min(patience, 10.0)))
            last, seen, patience = await self._try(pod)
            if seen is None:
                return last
            pod = seen
        return last

    async def _try(self, pod: Held) -> tuple[Outcome, Held | None, float]:
        """Try once. Return what became of it, what to try again, and seconds to wait before."""
        again, patience = True, 0.0
        try:
            await self._patch(pod)
            return Outcome(pod, Result.RELEASED), None, 0.0
        except ClusterUnavailable as error:  # it may have happened: look
            last = Outcome(pod, Result.UNKNOWN, str(error))
        except ClusterRefused as error:
            last, patience = Outcome(pod, Result.REFUSED, str(error)), error.retry_after or 0.0
            if error.status not in (404, 409, 422, 429):
                return last, None, 0.0
            again = error.status != 422
        try:
            seen = await self.find(pod.ref.namespace, pod.ref.name)
        except ClusterUnavailable:
            return last, pod, patience
        except ClusterRefused as error:
            gone = error.status == 404
            return Outcome(pod, Result.FREE) if gone else last, None, 0.0
        if seen is None and last.result is Result.UNKNOWN:
            return Outcome(pod, Result.RELEASED), None, 0.0
        if seen is None or seen.ref.uid != pod.ref.uid:
            return Outcome(pod, Result.FREE), None, 0.0
        # A 422 of a pod that is as we saw it will be one the next time, too.
        return last, seen if again or seen != pod else None, patience

    async def observe(self) -> bool:
        """Let nothing be held from now on: mode Observe. False if there is no Policy resource."""
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
            if error.status == 409:  # somebody made it this instant
                return await self.observe()
            raise
        return True

    async def record(self, pod: Held, message: str) -> None:
        """Write a Kubernetes event on a pod. Raises ClusterError."""
        path = f"/api/v1/namespaces/{quote(pod.ref.namespace, safe='')}/events"
        body = event(Tell(pod.ref, Notice.RELEASED, message))
        await self._client.request("POST", path, body=body)

    async def _patch(self, pod: Held) -> None:
        await self._client.request(
            "PATCH",
            _path(pod.ref.namespace, pod.ref.name),
            query=[("timeout", f"{SERVER_SECONDS}s")],
            body=release_patch(pod),
            content_type=JSON_PATCH,
            timeout=SERVER_SECONDS + 1.0,
        )

    async def _ask(
        self, path: str, version: str, kind: str, fields: dict[str, Any]
    ) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, **fields}
        return _decode(await self._client.request("POST", path, body=body), _Review).status


def release_patch(pod: Held) -> Patch:
    """Return the patch that takes our gate away, and no other, and says that nobody else did."""
    gate, written = f"/spec/schedulingGates/{pod.gate}", {ANNOTATION_RELEASE: ADOPTED}
    patch: Patch = [
        {"op": "test", "path": "/metadata/uid", "value": pod.ref.uid},
        {"op": "test", "path": gate, "value": {"name": GATE}},
    ]
    if pod.has_annotations:
        key = f"{OURS.rstrip('/')}~1release"
        patch.append({"op": "add", "path": f"/metadata/annotations/{key}", "value": ADOPTED})
    else:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": written})
    patch.append({"op": "remove", "path": gate})
    return patch


def _held(pod: _Pod) -> Held | None:
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    if GATE not in gates or OWN_GATE in gates:
        return None  # the canary's pod stands for all others, and never runs
    meta = pod.metadata
    return Held(
        PodRef(Uid(meta.uid), meta.namespace, meta.name),
        gates.index(GATE),
        tuple(gate for gate in gates if gate != GATE),
        meta.annotations is not None,
    )


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(
            "The API server answered with something else than Kubernetes does; "
            "see whether the kubeconfig names the right server."
        ) from error
