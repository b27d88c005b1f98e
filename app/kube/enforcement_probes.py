"""Probes of enforcement. Each returns what blocked it. The canary decides when they run.

They change only one pod of their own, which is in its own namespace and is never released.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.well_known import GATE
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder
from app.kube.client import JSON_PATCH, Client

NAMESPACE = "fairgate-canary"
POD = "fairgate-canary"
ACCOUNT = "fairgate-canary"
SCHEDULER = "fairgate-canary"
"""No scheduler has this name, and it is not an allowed scheduler."""

OWN_GATE = "fairgate.io/canary"
"""Prevents the release of the pod, and its scheduling if Fairgate's gate is removed."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_DENIED = "denied"
_UNANSWERED = "failed calling webhook"
_RULE = re.compile(r"""ValidatingAdmissionPolicy '([^']+)'|admission webhook "([^"]+)\"""")

_pod = Decoder(objects.PodObject)


class EnforcementLayer(Enum):
    """The two layers of enforcement."""

    POLICY = "policy"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class BlockingObject:
    """The policy or webhook that blocked a probe."""

    layer: EnforcementLayer
    name: str

    def __str__(self) -> str:
        return f"{self.layer.value} {self.name}"


HOLD_WEBHOOK = BlockingObject(EnforcementLayer.WEBHOOK, "hold.fairgate.io")


class HoleFound(Exception):
    """A probe showed that enforcement does not work. The message says how."""


class EnforcementProbes:
    """Each method is one probe and returns what blocked it.

    Raises HoleFound. Raises ClusterError if the probe did not run, which proves neither result.
    """

    def __init__(self, client: Client, managed: Sequence[str]) -> None:
        """`managed`: resource patterns."""
        self._client = client
        self._resource = probe_resource(managed)

    async def probe_hold(self) -> BlockingObject:
        """Check that a pod with a managed resource would be stored with Fairgate's gate."""
        made = await self._create_pod(self._pod_body(), dry_run=True)
        if GATE not in gate_names(made):
            raise HoleFound(f"a pod that asks for {self._resource} is not held by {GATE}.")
        return HOLD_WEBHOOK

    async def probe_create(self) -> BlockingObject:
        """Check that a pod for another scheduler is refused, held or not."""
        body = self._pod_body()
        body["spec"]["schedulerName"] = SCHEDULER
        try:
            await self._client.request("POST", PODS, query=[("dryRun", "All")], body=body)
        except ClusterRefused as error:
            rule = _denied_by(error, expected=(409, 429))
            if rule is None:
                raise HoleFound(
                    f"what refused a pod of scheduler {SCHEDULER} was no rule: {error}"
                ) from error
            return rule
        except ClusterUnavailable as error:
            raise _outage_error(error) from error
        raise HoleFound(f"a pod of scheduler {SCHEDULER} can be made; no rule refused it.")

    async def probe_release(self) -> BlockingObject:
        """Check that Fairgate's gate cannot be removed from the probe's pod."""
        held = await self._ensure_held_pod()
        at = f"/spec/schedulingGates/{gate_names(held).index(GATE)}"
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": held.metadata.uid},
            {"op": "test", "path": f"{at}/name", "value": GATE},
            {"op": "remove", "path": at},
        ]
        query = [("dryRun", "All")]
        try:
            await self._client.request(
                "PATCH", f"{PODS}/{POD}", query=query, body=patch, content_type=JSON_PATCH
            )
        except ClusterRefused as error:
            rule = _denied_by(error, expected=(404, 409, 429))
            if rule is None:
                raise HoleFound(f"what refused to take {GATE} off was no rule: {error}") from error
            return rule
        raise HoleFound(
            f"users who may edit pods can remove {GATE}; no policy or webhook refused it."
        )

    async def _ensure_held_pod(self) -> objects.PodObject:
        """Return the probe's pod. Create it if it is missing, or again if it has lost the gate."""
        path = f"{PODS}/{POD}"
        try:
            found = _read(await self._client.request("GET", path))
        except ClusterRefused as error:
            if error.status != 404:
                raise
            found = await self._create_pod(self._pod_body(OWN_GATE), dry_run=False)
        if GATE in gate_names(found):
            return found
        body = {"preconditions": {"uid": found.metadata.uid}, "gracePeriodSeconds": 0}
        await self._client.request("DELETE", path, body=body)
        raise HoleFound(
            f"the pod {NAMESPACE}/{POD} has no gate {GATE}: it was made without, or "
            "somebody took it off; a new one is made."
        )

    async def _create_pod(self, body: dict[str, Any], *, dry_run: bool) -> objects.PodObject:
        """Create a pod. Raises ClusterError, also if another replica was first."""
        query = [("dryRun", "All")] if dry_run else []
        try:
            return _read(await self._client.request("POST", PODS, query=query, body=body))
        except ClusterRefused as error:
            if error.status in (409, 429):
                raise
            raise HoleFound(f"no pod can be made in {NAMESPACE}: {error}") from error
        except ClusterUnavailable as error:
            raise _outage_error(error) from error

    def _pod_body(self, *own_gates: str) -> dict[str, Any]:
        """Return a pod that satisfies every Pod Security Standard."""
        container = {
            "name": "none",
            "image": "none",
            "resources": {"limits": {self._resource: "1"}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD} if own_gates else {"generateName": f"{POD}-"},
            "spec": {
                "containers": [container],
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "schedulingGates": [{"name": name} for name in own_gates],
            },
        }


def probe_resource(managed: Sequence[str]) -> str:
    """Return a managed resource: an exact name if there is one, else a name for a pattern."""
    exact = [each for each in managed if not each.endswith("*")]
    return exact[0] if exact else managed[0].removesuffix("*") + "canary"


def gate_names(pod: objects.PodObject) -> list[str]:
    """Return the names of a pod's scheduling gates."""
    return [gate.name for gate in pod.spec.scheduling_gates or ()]


def _denied_by(error: ClusterRefused, *, expected: tuple[int, ...]) -> BlockingObject | None:
    """Return the policy or webhook that refused. A refusal by RBAC proves no rule: return None.

    Raises the error itself if its status means that the probe did not run.
    """
    said = str(error)
    found = _RULE.search(said) if _DENIED in said else None
    if found:
        return (
            BlockingObject(EnforcementLayer.POLICY, found[1])
            if found[1]
            else BlockingObject(EnforcementLayer.WEBHOOK, found[2])
        )
    if error.status in expected:
        raise error
    return None


def _outage_error(error: ClusterUnavailable) -> Exception:
    """Return the error for an outage: HoleFound if a webhook is down, else the error itself."""
    if _UNANSWERED not in str(error):
        return error
    return HoleFound(f"the API server cannot reach a webhook: {error}")


def _read(answer: bytes) -> objects.PodObject:
    try:
        return _pod.decode(answer)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"a pod in {NAMESPACE} cannot be read: {error}") from error
