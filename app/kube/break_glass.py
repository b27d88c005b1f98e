"""What `fairgate release` does: asks, releases one held pod or all of them, and tells.

Results go to standard output, everything else to standard error. How a pod is released is not
known here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.core.errors import ClusterError, ClusterRefused, InvalidInput
from app.kube import caller
from app.kube.by_hand import ByHand, Held, Outcome, Result
from app.kube.client import Client
from app.kube.progress import Bar

NO, UNREACHABLE = 1, 3

AT_ONCE = 16
"""Most patches under way."""
ROUNDS = 20
"""Times that all pods are listed, while more come to be held."""
SETTLED_SECONDS = 3.0
"""Between the two lists that must show none: a create that was under way ends in this time."""
SHOWN = 10
"""Most pods that are named, of those that could not be released."""

GO_BACK = """kubectl patch policy default --type merge -p '{"spec": {"mode": "Enforce"}}'"""
GO_ON = "helm uninstall fairgate --namespace fairgate-system"


class _No(Exception):
    """The answer is no; says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `pod` without `everything`, or the other way round."""

    pod: str | None
    everything: bool
    namespace: str | None
    kubeconfig: Path | None
    yes: bool
    output: str


def run(options: Options) -> None:
    """Do it. Raises FairgateError, and SystemExit with 1 or 3 if not all was done."""
    if (options.pod is None) is not options.everything:
        raise InvalidInput("Name one pod to release, or say --all: fairgate release --help.")
    if options.everything and options.namespace is not None:
        raise InvalidInput("--all means every namespace: leave out --namespace, or name a pod.")
    if not options.yes and not sys.stdin.isatty():
        raise InvalidInput(
            "A release cannot be undone, and there is nobody to ask: add --yes to do it."
        )
    who = caller.find(options.kubeconfig, os.environ)
    try:
        code = asyncio.run(_run(options, who))
    except _No as no:
        _tell(str(no))
        code = NO
    if code:
        raise SystemExit(code)


async def _run(options: Options, who: caller.Caller) -> int:
    client = await Client.connect(who.kubeconfig)
    try:
        hand = ByHand(client)
        name = await hand.who()
        if options.pod is None:
            return await _Everything(hand, options, name).run()
        return await _one(hand, options, options.namespace or who.namespace, options.pod, name)
    finally:
        await client.close()


async def _one(hand: ByHand, options: Options, namespace: str, pod: str, who: str) -> int:
    if not await hand.may_release(namespace):
        raise _denied(who, f"pods of namespace {namespace}", "a RoleBinding or ClusterRoleBinding")
    try:
        held = await hand.find(namespace, pod)
    except ClusterRefused as error:
        if error.status != 404:
            raise
        raise InvalidInput(
            f"There is no pod {namespace}/{pod}; name its namespace by --namespace."
        ) from error
    full = f"{namespace}/{pod}"
    facts: dict[str, Any] = {"namespace": namespace, "pod": pod, "by": who}
    if held is None:
        facts |= {"released": False, "otherGates": [], "why": "not held"}
        _print(options, facts, f"Pod {full} is not held by Fairgate; nothing was changed.")
        return 0
    _ask(options, f"Release pod {full} by hand? It skips its queue, and cannot be held again.")
    outcome = await hand.release(held)
    done = outcome.result is Result.RELEASED
    facts |= {"released": done, "otherGates": list(outcome.pod.others), "why": outcome.why}
    if outcome.result in (Result.REFUSED, Result.UNKNOWN):
        _print(options, facts, "")
        _tell(f"pod {full} was not released: {outcome.why}")
        return _code([outcome])
    if not done:
        facts["why"] = "not held"
        _print(options, facts, f"Pod {full} was released, or deleted, meanwhile.")
        return 0
    lines = [f"Released pod {full} by hand{_as(who)}. From now on it counts as used."]
    if outcome.pod.others:
        lines.append(_other_gates("It", list(outcome.pod.others)))
    _print(options, facts, "\n".join(lines))
    await _record(hand, outcome.pod, f"by hand{_as(who)}, past its queue")
    return 0


@dataclass(slots=True)
class _Everything:
    """Releases all that is held, and lets nothing be held any more."""

    hand: ByHand
    options: Options
    who: str
    released: int = 0
    other_gates: int = 0
    failed: dict[str, Outcome] = field(default_factory=dict)
    left: int = 0

    async def run(self) -> int:
        if not await self.hand.may_release(""):
            raise _denied(self.who, "pods of every namespace", "a ClusterRoleBinding")
        _ask(
            self.options,
            "Release every held pod of this cluster by hand, and hold none from now on? Policy "
            "default goes to mode Observe; no release can be undone.",
        )
        observes = await self._observe()
        with Bar() as bar:
            await self._rounds(bar)
        self._report(observes)
        return _code(self.failed.values()) or (NO if self.left else 0)

    async def _observe(self) -> bool:
        try:
            return await self.hand.observe()
        except ClusterRefused as error:
            if error.status != 403:
                raise
            raise _No(
                f"nothing was released: {self.who or 'the caller'} may not change Policy default, "
                "so new pods would go on being held; the ClusterRole fairgate-operator allows it."
            ) from error

    async def _rounds(self, bar: Bar) -> None:
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
                await asyncio.sleep(SETTLED_SECONDS)
                continue
            empty = 0
            await self._release(found, bar)

    async def _release(self, found: list[Held], bar: Bar) -> None:
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

    def _report(self, observes: bool) -> None:
        failed = [
            {"namespace": each.pod.ref.namespace, "pod": each.pod.ref.name, "why": each.why}
            for each in self.failed.values()
        ]
        facts = {
            "released": self.released,
            "otherGates": self.other_gates,
            "failed": failed,
            "stillHeld": self.left + len(failed),
            "mode": "Observe" if observes else None,
            "by": self.who,
        }
        _print(self.options, facts, "\n".join(self._lines(observes)))
        for each in failed[:SHOWN]:
            _tell(f"pod {each['namespace']}/{each['pod']} was not released: {each['why']}")
        if len(failed) > SHOWN:
            _tell(f"... and {len(failed) - SHOWN} more; --output json names them all")
        if self.left:
            _tell(
                f"{self.left} pods came to be held meanwhile, and more may come; see whether "
                "every webhook process reaches the API server, and run this again."
            )

    def _lines(self, observes: bool) -> list[str]:
        lines = [f"Released {_count(self.released)} by hand{_as(self.who)}."]
        if self.other_gates:
            carry = "of them carry" if self.other_gates > 1 else "of them carries"
            lines.append(
                f"{self.other_gates} {carry} gates that are not Fairgate's, and start when the "
                "owners of those remove them."
            )
        if not observes:
            lines.append("Fairgate's resources are not installed (no Policy): nothing holds pods.")
            return lines
        lines.append("Policy default is in mode Observe: nothing new is held.")
        lines.append(f"To go back:    {GO_BACK}")
        lines.append(f"To uninstall:  {GO_ON}")
        return lines


def _count(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods} pods"


def _as(who: str) -> str:
    return f", as {who}" if who else ""


def _other_gates(subject: str, gates: list[str]) -> str:
    return (
        f"{subject} still carries {', '.join(gates)}, which is not Fairgate's: it starts when the "
        "owner of that removes it."
    )


def _code(outcomes: Any) -> int:
    results = {outcome.result for outcome in outcomes}
    if Result.UNKNOWN in results:
        return UNREACHABLE
    return NO if results else 0


async def _record(hand: ByHand, pod: Held, message: str) -> None:
    try:
        await hand.record(pod, message)
    except ClusterError as error:
        _tell(f"no event was written on the pod, for its owner to see: {error}")


def _denied(who: str, what: str, binding: str) -> _No:
    return _No(
        f"{who or 'the caller'} may not release {what}: that takes the right `release` on "
        f"podgates.fairgate.io there, which {binding} to the ClusterRole fairgate-operator gives."
    )


def _ask(options: Options, question: str) -> None:
    """Go on only if the person says yes."""
    if options.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise _No("nothing was changed.")


def _print(options: Options, facts: dict[str, Any], text: str) -> None:
    if options.output == "json":
        print(json.dumps(facts, indent=2))
    elif text:
        print(text)


def _tell(sentence: str) -> None:
    print(f"fairgate: {sentence}", file=sys.stderr)
