"""Releases all that is held, and lets nothing be held any more: the way to an uninstall.

Goes on past pods that cannot be released, and names them in the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from app.core.errors import ClusterError, ClusterRefused
from app.kube.by_hand import ByHand, Held, Outcome, Result
from app.kube.progress import Bar
from app.kube.telling import NO, No, Options, ask, code_of, denied, show, signed, tell

AT_ONCE = 16
"""Most patches under way."""
ROUNDS = 20
"""Times that all pods are listed, while more come to be held."""
SETTLED_SECONDS = 3.0
"""Between the two lists that must show none: nothing tells when a create under way has ended."""
SHOWN = 10
"""Most pods that are named, of those that could not be released."""

GO_BACK = """kubectl patch policy default --type merge -p '{"spec": {"mode": "Enforce"}}'"""
GO_ON = "helm uninstall fairgate --namespace fairgate-system"


async def release_all(
    hand: ByHand, options: Options, who: str, *, settled_after: float = SETTLED_SECONDS
) -> int:
    """Do it, and tell; return the exit code. Raises No, ClusterError."""
    if not await hand.may_release(""):
        raise denied(who, "pods of every namespace", "a ClusterRoleBinding")
    ask(
        options,
        "Release every held pod of this cluster by hand, and hold none from now on? Policy "
        "default goes to mode Observe; no release can be undone.",
    )
    everything = _Everything(hand, who, settled_after, await _observe(hand, who))
    try:
        with Bar() as bar:
            await everything.release(bar)
    except (ClusterError, asyncio.CancelledError):
        tell(f"stopped after {_count(everything.released)}; run it again to go on")
        raise
    everything.report(options)
    return code_of(everything.failed.values()) or (NO if everything.left else 0)


async def _observe(hand: ByHand, who: str) -> bool:
    try:
        return await hand.observe()
    except ClusterRefused as error:
        if error.status != 403:
            raise
        raise No(
            f"nothing was released: {who or 'the caller'} may not change Policy default, so new "
            "pods would go on being held; the ClusterRole fairgate-operator allows it."
        ) from error


@dataclass(slots=True)
class _Everything:
    """What was done so far. `left`: held pods of the last list; `observes`: there is a Policy."""

    hand: ByHand
    who: str
    settled_after: float
    observes: bool
    released: int = 0
    other_gates: int = 0
    failed: dict[str, Outcome] = field(default_factory=dict)
    left: int = 0

    async def release(self, bar: Bar) -> None:
        """List and release, until two lists in a row show none but those that cannot be."""
        empty = 0
        for _ in range(ROUNDS):
            found: list[Held] = []
            async for page in self.hand.held():
                found += [pod for pod in page if pod.ref.uid not in self.failed]
                bar.tell("Looking for held pods", len(found))
            self.left = len(found)
            if not found:
                empty += 1
                if empty == 2:
                    return
                bar.tell("Waiting for pods that are being created", self.released)
                await asyncio.sleep(self.settled_after)
                continue
            empty = 0
            await self._release_these(found, bar)

    async def _release_these(self, found: list[Held], bar: Bar) -> None:
        waiting, total = deque(found), len(found)

        async def work() -> None:
            while waiting:
                self._note(await self.hand.release(waiting.popleft()))
                bar.tell("Releasing", total - len(waiting), total)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())

    def _note(self, outcome: Outcome) -> None:
        if outcome.result is Result.RELEASED:
            self.released += 1
            self.other_gates += bool(outcome.pod.others)
        elif outcome.result is not Result.FREE:
            self.failed[outcome.pod.ref.uid] = outcome

    def report(self, options: Options) -> None:
        """Tell what was done, what was not, and how to go on or back."""
        failed = [
            {"namespace": each.pod.ref.namespace, "pod": each.pod.ref.name, "why": each.why}
            for each in self.failed.values()
        ]
        facts = {
            "released": self.released,
            "otherGates": self.other_gates,
            "failed": failed,
            "stillHeld": self.left + len(failed),
            "mode": "Observe" if self.observes else None,
            "by": self.who,
        }
        show(options, facts, "\n".join(self._lines()))
        for each in failed[:SHOWN]:
            tell(f"pod {each['namespace']}/{each['pod']} was not released: {each['why']}")
        if len(failed) > SHOWN:
            tell(f"... and {len(failed) - SHOWN} more; --output json names them all")
        if self.left:
            tell(
                f"{self.left} pods came to be held meanwhile, and more may come; see whether "
                "every webhook process reaches the API server, and run this again."
            )

    def _lines(self) -> list[str]:
        lines = [f"Released {_count(self.released)} by hand{signed(self.who)}."]
        if self.other_gates:
            carry = "of them carry" if self.other_gates > 1 else "of them carries"
            lines.append(
                f"{self.other_gates} {carry} gates that are not Fairgate's, and start when the "
                "owners of those remove them."
            )
        if not self.observes:
            lines.append("Fairgate's resources are not installed: there was no Policy to change.")
            return lines
        lines.append("Policy default is in mode Observe: nothing new is held.")
        lines.append(f"To go back:    {GO_BACK}")
        lines.append(f"To uninstall:  {GO_ON}")
        return lines


def _count(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods} pods"
