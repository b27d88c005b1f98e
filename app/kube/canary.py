"""Tries, every few seconds, whether a pod that asks for a GPU is held, and its gate holds.

It changes nothing but one pod of its own, in a namespace of its own, which is never released.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.core.model import GATE
from app.kube.alarm import Alarm
from app.kube.client import JSON_PATCH, Client
from app.ports import EnforcementMeters

log = logging.getLogger("fairgate.kube")

NAMESPACE = "fairgate-canary"
POD = "fairgate-canary"
ACCOUNT = "fairgate-canary"
OWN_GATE = "fairgate.io/canary"
"""Keeps the pod from being released, or scheduled should our gate be taken off."""

HOLD = "hold"
RELEASE = "release"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"

_pod = msgspec.json.Decoder(wire.Pod)
_POLICY, _WEBHOOK, _DENIED = "ValidatingAdmissionPolicy", "admission webhook", "denied"
_UNANSWERED = "failed calling webhook"


class _HoleError(Exception):
    """A trial showed that enforcement does not hold; the message says how."""


class Canary:
    """The two trials, by `run`: `hold`, a new pod is held; `release`, its gate cannot be taken."""

    def __init__(
        self,
        client: Client,
        managed: Sequence[str],
        *,
        seconds: float,
        observing: Callable[[], bool],
        meters: EnforcementMeters,
        alarm: Alarm,
        checks: Sequence[str] = (HOLD, RELEASE),
    ) -> None:
        """`managed`: patterns of resources. While `observing` nothing is held, nor tried."""
        self._client = client
        self._resource = resource(managed)
        self._seconds = seconds
        self._observing = observing
        self._meters = meters
        self._alarm = alarm
        trials: Mapping[str, Callable[[], Awaitable[None]]] = {
            HOLD: self._try_hold,
            RELEASE: self._try_release,
        }
        self._trials = {check: trials[check] for check in checks}
        self._well: dict[str, bool] = {}

    async def run(self) -> None:
        """Try for ever. The first time is after a while: the webhook may be new to the server."""
        while True:
            await asyncio.sleep(self._seconds)
            await self.look()

    async def look(self) -> None:
        """Make each trial once and report what it showed."""
        for check, trial in self._trials.items():
            if self._observing():
                self._well.pop(check, None)
                self._meters.checked(check, None)
                continue
            try:
                await trial()
            except _HoleError as error:
                await self._report(check, str(error))
            except ClusterError as error:  # it could not be tried, which says nothing
                log.info(
                    "enforcement could not be tried", extra={"check": check, "why": str(error)}
                )
            else:
                await self._report(check, None)

    async def _report(self, check: str, hole: str | None) -> None:
        well = hole is None
        self._meters.checked(check, well)
        if self._well.get(check, True) == well:
            self._well[check] = well
            return
        self._well[check] = well
        if hole is None:
            log.info("enforcement holds again", extra={"check": check})
            return
        log.error("enforcement does not hold", extra={"check": check, "why": hole})
        await self._alarm.tell("EnforcementFails", check, f"Enforcement does not hold: {hole}")

    async def _try_hold(self) -> None:
        """A pod that asks for a managed resource would be stored with our gate."""
        made = await self._created(self._body(), dry_run=True)
        if GATE not in gates(made):
            raise _HoleError(f"a pod that asks for {self._resource} is not held by {GATE}.")

    async def _try_release(self) -> None:
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
            if _is_denial(str(error)):
                return
            if error.status in (404, 409, 429):
                raise
            raise _HoleError(f"what refused to take {GATE} off was no rule: {error}") from error
        raise _HoleError(f"whoever may edit pods can take {GATE} off; no rule refused it.")

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
        raise _HoleError(
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
            raise _HoleError(f"no pod can be made in {NAMESPACE}: {error}") from error
        except ClusterUnavailable as error:
            if _UNANSWERED not in str(error):
                raise
            raise _HoleError(f"the API server cannot reach a webhook: {error}") from error

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


def _is_denial(said: str) -> bool:
    """Tell whether a policy or a webhook said no; RBAC would too, and that proves nothing."""
    return _DENIED in said and (_POLICY in said or _WEBHOOK in said)


def _read(answer: bytes) -> wire.Pod:
    try:
        return _pod.decode(answer)
    except msgspec.DecodeError as error:
        raise ClusterUnavailable(f"a pod in {NAMESPACE} cannot be read: {error}") from error
