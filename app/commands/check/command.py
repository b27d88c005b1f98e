"""Implementation of `fairgate check`: tests an installation with the probes of the canary.

It changes no pod of a user. Mode Observe does not hold pods, so only the leader is tested there.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

from app.commands.release.manual_release import ByHand
from app.core.errors import ClusterError, ClusterRefused, InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.core.policy import ENFORCE_COMMAND, Mode
from app.k8s_types import objects
from app.kube import kubeconfig as kubeconfig_files
from app.kube.answers import decode_answer
from app.kube.client import Client
from app.kube.enforcement_probes import NAMESPACE, EnforcementProbes, HoleFound
from app.kube.enforcement_spec import CONFIG_MAP, read_documents, read_mode
from app.kube.lease import NAME as LEASE
from app.terminal.output import Listing, OutputOptions, as_text, warn

FAILED = 1
AGAIN_SECONDS = 1.0
RIGHTS_SECONDS = 2.0
"""Time in which a right may still be missing because its role is new."""

PATIENCE, LINE_SECONDS = 2.0, 10.0
"""Seconds before the first progress message, and between two."""

POLICY_PATH = "/apis/fairgate.io/v1alpha1/policies/default"

CHECKS = Listing(itemgetter("checks"), lambda item: f"check/{item['check']}")

T = TypeVar("T")


class _PolicySpec(objects.KubeStruct, frozen=True):
    mode: str | None = None


class _Policy(objects.KubeStruct, frozen=True):
    spec: _PolicySpec | None = None


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Arguments of `fairgate check`. `wait`: seconds until a check that fails counts as failed."""

    kubeconfig: KubeconfigOptions
    namespace: str
    managed: tuple[str, ...]
    wait: float
    output: OutputOptions


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, with a message about the result or the failure.

    `passed` is None if the caller's rights do not allow the test.
    """

    name: str
    passed: bool | None
    message: str


def is_sound(results: Sequence[CheckResult]) -> bool:
    """Return whether no check failed and at least one passed."""
    passed = [each.passed for each in results]
    return False not in passed and True in passed


class CheckFailed(Exception):
    """A check failed. The message says why."""


class CheckSkipped(Exception):
    """A check cannot be made with the rights of the caller. The message says why."""


Check = Callable[[], Awaitable[str]]
WORDS = {True: "ok", False: "FAILED", None: "skipped"}


def run(options: CheckOptions) -> None:
    """Run all checks. Raises FairgateError, and SystemExit with 1 if one failed."""
    who = kubeconfig_files.find_caller(options.kubeconfig, os.environ)

    async def go() -> list[CheckResult]:
        client = await Client.connect_with(who.options)
        try:
            return await InstallationCheck(client, options).run()
        finally:
            await client.close()

    results = asyncio.run(go())
    if options.output.is_data:
        facts = [{"check": r.name, "passed": r.passed, "message": r.message} for r in results]
        print(as_text(options.output, {"checks": facts}, CHECKS))
    else:
        for each in results:
            print(f"{WORDS[each.passed]:7}  {each.name:8}  {each.message}")
    if not is_sound(results):
        raise SystemExit(FAILED)


class InstallationCheck:
    """The checks of one installation. `pause` is the time between two tries, in seconds."""

    def __init__(self, client: Client, options: CheckOptions, pause: float = AGAIN_SECONDS) -> None:
        self._client = client
        self._namespace = options.namespace
        self._probes = EnforcementProbes(client, options.managed)
        self._wait = options.wait
        self._pause = pause
        self._rights_until = 0.0
        self._progress = ""

    async def run(self) -> list[CheckResult]:
        """Run every check until it passes or the time is over. Return the results in order."""
        began = time.monotonic()
        self._rights_until = began + RIGHTS_SECONDS
        reporter = asyncio.create_task(self._report_progress())
        try:
            return await self._run_all(began + self._wait)
        finally:
            reporter.cancel()

    async def _report_progress(self) -> None:
        await asyncio.sleep(PATIENCE)
        while True:
            warn(f"still testing {self._progress}")
            await asyncio.sleep(LINE_SECONDS)

    async def _run_all(self, deadline: float) -> list[CheckResult]:
        mode = await self._run_check("mode", self._mode, deadline)
        probes: dict[str, Check] = {
            "objects": self._objects,
            "hold": self._hold,
            "create": self._create,
            "release": self._release,
        }
        results = [mode]
        if mode.passed is None:
            results += [CheckResult(name, None, _MODE_UNKNOWN) for name in probes]
        elif mode.message not in (_OBSERVES, _POLICY_OBSERVES):
            results += [
                await self._run_check(name, each, deadline) for name, each in probes.items()
            ]
        return [*results, await self._run_check("leader", self._leader, deadline)]

    async def _run_check(self, name: str, check: Check, deadline: float) -> CheckResult:
        self._progress = name
        while True:
            try:
                return CheckResult(name, True, await check())
            except CheckSkipped as reason:
                return CheckResult(name, None, str(reason))
            except (CheckFailed, HoleFound, ClusterError, InvalidInput) as error:
                again_at = time.monotonic() + self._pause
                lacks_right = _lacks_right(error)
                if again_at > (min(deadline, self._rights_until) if lacks_right else deadline):
                    if lacks_right:
                        return CheckResult(name, None, f"not tested: {error}")
                    return CheckResult(name, False, str(error))
                self._progress = f"{name}: {error}"
            await asyncio.sleep(self._pause)

    async def _mode(self) -> str:
        policy = await self._find(POLICY_PATH, _Policy)
        mode = policy.spec.mode if policy is not None and policy.spec is not None else None
        if mode == Mode.OBSERVE.value:
            return _POLICY_OBSERVES
        if mode is None:
            mode = read_mode(await self._installed()).value
        return _OBSERVES if mode == Mode.OBSERVE.value else "Enforce"

    async def _installed(self) -> dict[str, str] | None:
        """Return the data of the ConfigMap with the mode and the objects."""
        path = f"/api/v1/namespaces/{self._namespace}/configmaps/{CONFIG_MAP}"
        installed = await self._find(path, objects.ConfigMap)
        if installed is None:
            raise CheckFailed(
                f"there is no ConfigMap {self._namespace}/{CONFIG_MAP}: Fairgate is not "
                "installed in this namespace; name its namespace by --namespace."
            )
        return installed.data

    async def _objects(self) -> str:
        """Return how many objects enforcement needs, if all exist."""
        refs = sorted(read_documents(await self._installed()))
        missing = [str(ref) for ref in refs if await self._find(ref.path, dict[str, Any]) is None]
        if missing:
            raise CheckFailed(
                f"{', '.join(missing)} {'does' if len(missing) == 1 else 'do'} not exist; see the "
                "log of Deployment fairgate-webhook, which creates what enforcement needs."
            )
        return f"all {len(refs)} webhook configurations and policies exist"

    async def _hold(self) -> str:
        return f"a pod with a managed resource is held by {await self._probes.probe_hold()}"

    async def _create(self) -> str:
        return f"a pod of another scheduler is refused by {await self._probes.probe_create()}"

    async def _release(self) -> str:
        if await ByHand(self._client).may_release(NAMESPACE):
            raise CheckSkipped(_MAY_RELEASE)
        return f"the gate of a held pod is protected by {await self._probes.probe_release()}"

    async def _leader(self) -> str:
        """Return who leads. A leader renews its Lease, so the Lease must change."""
        first = await self._lease_of()
        holder = first.spec.holder_identity
        if not holder:
            raise CheckFailed(_NO_LEADER)
        until = time.monotonic() + (first.spec.lease_duration_seconds or 15)
        while time.monotonic() < until:
            await asyncio.sleep(self._pause)
            now = await self._lease_of()
            if now.spec.holder_identity != holder:
                break
            if now.metadata.resource_version != first.metadata.resource_version:
                return f"{holder} leads"
        raise CheckFailed(f"{holder} does not renew the Lease {LEASE}; {_NO_LEADER}")

    async def _lease_of(self) -> objects.Lease:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{LEASE}"
        try:
            return decode_answer(await self._client.request("GET", path), objects.Lease)
        except ClusterRefused as error:
            if error.status != 404:
                raise
            raise CheckFailed(_NO_LEADER) from error

    async def _find(self, path: str, kind: type[T]) -> T | None:
        """Return an object; None if it does not exist."""
        try:
            return decode_answer(await self._client.request("GET", path), kind)
        except ClusterRefused as error:
            if error.status != 404:
                raise
            return None


def _lacks_right(error: Exception) -> bool:
    """Return whether an error is only about the rights of the caller, not a refusal by a rule."""
    refusal = error if isinstance(error, ClusterRefused) else error.__cause__
    if not isinstance(refusal, ClusterRefused) or refusal.status != 403:
        return False
    return re.search(r"cannot \w+ resource", str(refusal)) is not None


_MODE_UNKNOWN = "not tested: the mode is not known, and mode Observe holds no pod."
_OBSERVES = "Observe: pods are not held, so enforcement is not tested"
_POLICY_OBSERVES = (
    f"{_OBSERVES}. Policy default sets this mode, and the chart's mode has no effect; to enforce: "
    f"{ENFORCE_COMMAND}"
)
_MAY_RELEASE = (
    "not tested: you may remove the gate of a pod, as cluster administrators may. helm test uses "
    "an account that may not, and the metric fairgate_canary_ok has the result of the canary."
)
_NO_LEADER = (
    "no controller leads, so no pod is released: see whether Redis answers, and the log of "
    "Deployment fairgate-controller."
)
