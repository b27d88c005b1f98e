"""What is tried to see whether enforcement holds; each trial tells what stopped it.

They change nothing but one pod of their own, in a namespace of its own, which is never released.
When to try, and what becomes of the answer, is the canary's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import GATE
from app.kube.client import JSON_PATCH, Client

NAMESPACE = "fairgate-canary"
POD = "fairgate-canary"
ACCOUNT = "fairgate-canary"
SCHEDULER = "fairgate-canary"
"""No scheduler has this name, and none that may place pods."""

OWN_GATE = "fairgate.io/canary"
"""Keeps the pod from being released, or scheduled should our gate be taken off."""

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_DENIED = "denied"
_UNANSWERED = "failed calling webhook"
_RULE = re.compile(r"""ValidatingAdmissionPolicy '([^']+)'|admission webhook "([^"]+)\"""")

_pod = msgspec.json.Decoder(wire.Pod)


class Layer(Enum):
    """Which of the two layers of enforcement."""

    POLICY = "policy"
    WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class Stop:
    """What stopped a trial."""

    layer: Layer
    name: str

    def __str__(self) -> str:
        return f"{self.layer.value} {self.name}"


HOLDS = Stop(Layer.WEBHOOK, "hold.fairgate.io")


class HoleFound(Exception):
    """A trial showed that enforcement does not hold; the message says how."""


class Trials:
    """Each method is one trial and returns what stopped it.

    They raise HoleFound, and ClusterError where it could not be tried, which says nothing.
    """

    def __init__(self, client: Client, managed: Sequence[str]) -> None:
        """`managed`: patterns of resources."""
        self._client = client
        self._resource = resource(managed)

    async def hold(self) -> Stop:
        """A pod that asks for a managed resource would be stored with our gate."""
        made = await self._created(self._body(), dry_run=True)
        if GATE not in gates(made):
            raise HoleFound(f"a pod that asks for {self._resource} is not held by {GATE}.")
        return HOLDS

    async def create(self) -> Stop:
        """A pod that another scheduler is to place is refused, held or not."""
        body = self._body()
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
            raise _unanswered(error) from error
        raise HoleFound(f"a pod of scheduler {SCHEDULER} can be made; no rule refused it.")

    async def release(self) -> Stop:
        """Our gate cannot be taken off the pod that stands for all others."""
        held = await self._held()
        at = f"/spec/schedulingGates/{gates(held).index(GATE)}"
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
        raise HoleFound(f"whoever may edit pods can take {GATE} off; no rule refused it.")

    async def _held(self) -> wire.Pod:
        """Return the pod, made if it is not there, and made anew if it has lost our gate."""
        path = f"{PODS}/{POD}"
        try:
            found = _read(await self._client.request("GET", path))
        except ClusterRefused as error:
            if error.status != 404:
                raise
            found = await self._created(self._body(OWN_GATE), dry_run=False)
        if GATE in gates(found):
            return found
        body = {"preconditions": {"uid": found.metadata.uid}, "gracePeriodSeconds": 0}
        await self._client.request("DELETE", path, body=body)
        raise HoleFound(
            f"the pod {NAMESPACE}/{POD} has no gate {GATE}: it was made without, or "
            "somebody took it off; a new one is made."
        )

    async def _created(self, body: dict[str, Any], *, dry_run: bool) -> wire.Pod:
        """Create a pod. Raises ClusterError, also if another replica was first."""
        query = [("dryRun", "All")] if dry_run else []
        try:
            return _read(await self._client.request("POST", PODS, query=query, body=body))
        except ClusterRefused as error:
            if error.status in (409, 429):
                raise
            raise HoleFound(f"no pod can be made in {NAMESPACE}: {error}") from error
        except ClusterUnavailable as error:
            raise _unanswered(error) from error

    def _body(self, *own_gates: str) -> dict[str, Any]:
        """Return a pod, one that every Pod Security Standard takes."""
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


def resource(managed: Sequence[str]) -> str:
    """Return the name of a managed resource: one that is written out, else one of a pattern."""
    exact = [each for each in managed if not each.endswith("*")]
    return exact[0] if exact else managed[0].removesuffix("*") + "canary"


def gates(pod: wire.Pod) -> list[str]:
    """Return the names of a pod's scheduling gates."""
    return [gate.name for gate in pod.spec.scheduling_gates or ()]


def _denied_by(error: ClusterRefused, *, expected: tuple[int, ...]) -> Stop | None:
    """Return the policy or webhook that said no. RBAC would too, and that proves nothing: None.

    Raises the refusal itself where its status says that the trial did not take place.
    """
    said = str(error)
    found = _RULE.search(said) if _DENIED in said else None
    if found:
        return Stop(Layer.POLICY, found[1]) if found[1] else Stop(Layer.WEBHOOK, found[2])
    if error.status in expected:
        raise error
    return None


def _unanswered(error: ClusterUnavailable) -> Exception:
    """Return what an outage means: a hole if it is that of a webhook; else nothing."""
    if _UNANSWERED not in str(error):
        return error
    return HoleFound(f"the API server cannot reach a webhook: {error}")


def _read(answer: bytes) -> wire.Pod:
    try:
        return _pod.decode(answer)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"a pod in {NAMESPACE} cannot be read: {error}") from error
