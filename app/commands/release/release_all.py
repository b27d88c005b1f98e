"""Releases all held pods and stops holding new ones, before an uninstall.

Pods that cannot be released are skipped and listed at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from app.commands.release.console import (
    NO,
    CommandFailed,
    ProgressBar,
    ReleaseOptions,
    as_user,
    confirm,
    exit_code,
    permission_error,
    print_result,
)
from app.commands.release.manual_release import (
    ByHand,
    GatedPod,
    ManualReleaseOutcome,
    ManualReleaseResult,
)
from app.core.errors import ClusterError, ClusterRefused
from app.core.podspec.resource_claims import FINALIZER
from app.core.policy import ENFORCE_COMMAND
from app.terminal.output import warn

AT_ONCE = 16
"""Maximum number of concurrent patches."""
ROUNDS = 20
"""Maximum number of lists of all pods, while new pods are held."""
SETTLED_SECONDS = 3.0
"""Pause between the two empty lists at the end: a pending create request is not visible."""
SHOWN = 10
"""Maximum number of failed pods in the output."""

GO_ON = "helm uninstall fairgate --namespace fairgate-system"


async def release_all(
    hand: ByHand, options: ReleaseOptions, who: str, *, settled_after: float = SETTLED_SECONDS
) -> int:
    """Run the command and report. Return the exit code. Raises No, ClusterError."""
    if not await hand.may_release(""):
        raise permission_error(who, "pods of every namespace", "a ClusterRoleBinding")
    confirm(
        options,
        "Release every held pod of this cluster by hand, and hold no new pods? Policy "
        "default goes to mode Observe; no release can be undone.",
    )
    everything = _Everything(hand, who, settled_after, await _observe(hand, who))
    try:
        with ProgressBar() as bar:
            await everything.release(bar)
            await everything.free_claims(bar)
    except (ClusterError, asyncio.CancelledError):
        warn(f"stopped after {_count(everything.released)}; run it again to go on")
        raise
    everything.report(options)
    unfinished = everything.still_held or everything.bound_claims
    return exit_code(everything.failed.values()) or (NO if unfinished else 0)


async def _observe(hand: ByHand, who: str) -> bool:
    try:
        return await hand.set_observe_mode()
    except ClusterRefused as error:
        if error.status != 403:
            raise
        raise CommandFailed(
            f"nothing was released: {who or 'the caller'} may not change Policy default, so new "
            "pods would go on being held; the ClusterRole fairgate-operator allows it."
        ) from error


@dataclass(slots=True)
class _Everything:
    """State of the run. `still_held`: held pods in the last list. `is_observing`: a Policy exists.

    `freed_claims` counts claims from which the finalizer was removed. `bound_claims` is why others
    keep it.
    """

    hand: ByHand
    who: str
    settled_after: float
    is_observing: bool
    released: int = 0
    other_gates: int = 0
    failed: dict[str, ManualReleaseOutcome] = field(default_factory=dict)
    still_held: int = 0
    freed_claims: int = 0
    bound_claims: str = ""

    async def free_claims(self, bar: ProgressBar) -> None:
        """Remove Fairgate's finalizer from every resource claim, until a list contains no such
        claim.

        A leader that is still in mode Enforce may add it again.
        """
        try:
            for _ in range(ROUNDS):
                found = await self.hand.protected_claims()
                if not found:
                    return
                for done, claim in enumerate(found):
                    bar.report("Removing finalizers of resource claims", done, len(found))
                    await self.hand.free_claim(claim)
                    self.freed_claims += 1
            self.bound_claims = "a running Fairgate adds them again"
        except ClusterRefused as error:
            self.bound_claims = str(error)

    async def release(self, bar: ProgressBar) -> None:
        """List and release, until two lists in a row contain only pods that cannot be released."""
        empty = 0
        for _ in range(ROUNDS):
            found: list[GatedPod] = []
            async for page in self.hand.list_held():
                found += [pod for pod in page if pod.ref.uid not in self.failed]
                bar.report("Looking for held pods", len(found))
            self.still_held = len(found)
            if not found:
                empty += 1
                if empty == 2:
                    return
                bar.report("Waiting for pods that are being created", self.released)
                await asyncio.sleep(self.settled_after)
                continue
            empty = 0
            await self._release_these(found, bar)

    async def _release_these(self, found: list[GatedPod], bar: ProgressBar) -> None:
        waiting, total = deque(found), len(found)

        async def work() -> None:
            while waiting:
                self._count_outcome(await self.hand.release(waiting.popleft()))
                bar.report("Releasing", total - len(waiting), total)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())

    def _count_outcome(self, outcome: ManualReleaseOutcome) -> None:
        if outcome.result is ManualReleaseResult.RELEASED:
            self.released += 1
            self.other_gates += bool(outcome.pod.other_gates)
        elif outcome.result is not ManualReleaseResult.FREE:
            self.failed[outcome.pod.ref.uid] = outcome

    def report(self, options: ReleaseOptions) -> None:
        """Print what was done, what failed, and how to continue or revert."""
        failed = [
            {"namespace": each.pod.ref.namespace, "pod": each.pod.ref.name, "why": each.why}
            for each in self.failed.values()
        ]
        facts = {
            "released": self.released,
            "otherGates": self.other_gates,
            "failed": failed,
            "stillHeld": self.still_held + len(failed),
            "claims": self.freed_claims,
            "mode": "Observe" if self.is_observing else None,
            "by": self.who,
        }
        print_result(options, facts, "\n".join(self._lines()))
        for each in failed[:SHOWN]:
            warn(f"pod {each['namespace']}/{each['pod']} was not released: {each['why']}")
        if len(failed) > SHOWN:
            warn(f"... and {len(failed) - SHOWN} more; --output json names them all")
        if self.bound_claims:
            warn(
                f"resource claims keep the finalizer {FINALIZER}: {self.bound_claims}; allow list "
                "and patch on resourceclaims, and run this again."
            )
        if self.still_held:
            warn(
                f"{self.still_held} pods came to be held meanwhile, and more may come; see whether "
                "every webhook process reaches the API server, and run this again."
            )

    def _lines(self) -> list[str]:
        lines = [f"Released {_count(self.released)} by hand{as_user(self.who)}."]
        if self.freed_claims:
            lines.append(f"Removed Fairgate's finalizer from {self.freed_claims} resource claims.")
        if self.other_gates:
            carry = "of them carry" if self.other_gates > 1 else "of them carries"
            lines.append(
                f"{self.other_gates} {carry} gates that are not Fairgate's, and start when the "
                "owners of those remove them."
            )
        if not self.is_observing:
            lines.append("Fairgate's resources are not installed: there was no Policy to change.")
            return lines
        lines.append("Policy default is in mode Observe: new pods are not held.")
        lines.append(f"To go back:    {ENFORCE_COMMAND}")
        lines.append(f"To uninstall:  {GO_ON}")
        return lines


def _count(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods} pods"
