"""Implementation of `fairgate release`: finds the caller, then releases one or all held pods."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from app.commands.doctor.referenced_objects import NAME
from app.commands.release.console import (
    NO,
    CommandFailed,
    ReleaseOptions,
    as_user,
    confirm,
    exit_code,
    permission_error,
    print_result,
)
from app.commands.release.manual_release import ByHand, GatedPod, ManualReleaseResult
from app.commands.release.release_all import release_all
from app.core.errors import ClusterError, ClusterRefused, InvalidInput
from app.kube import kubeconfig
from app.kube.client import Client
from app.terminal.output import warn


def run(options: ReleaseOptions) -> None:
    """Run the command. Raises FairgateError, and SystemExit with 1 or 3 if it was not completed."""
    if (options.pod is None) is not options.everything:
        raise InvalidInput("Name one pod to release, or say --all: fairgate release --help.")
    if options.pod is not None and not NAME.fullmatch(options.pod):
        raise InvalidInput(
            f"{options.pod!r} is not the name of a pod; write it, or set the variable that should "
            "contain it."
        )
    if options.everything and options.namespace is not None:
        raise InvalidInput("--all means every namespace: leave out --namespace, or name a pod.")
    if not options.yes and not sys.stdin.isatty():
        raise InvalidInput(
            "A release cannot be undone, and there is no terminal to confirm on: add --yes."
        )
    who = kubeconfig.find_caller(options.kubeconfig, os.environ)
    try:
        code = asyncio.run(_run(options, who))
    except CommandFailed as no:
        warn(str(no))
        code = NO
    if code:
        raise SystemExit(code)


async def _run(options: ReleaseOptions, who: kubeconfig.Caller) -> int:
    client = await Client.connect_with(who.options)
    try:
        hand = ByHand(client)
        name = await hand.read_user_name()
        if options.pod is None:
            return await release_all(hand, options, name)
        return await release_one(
            hand, options, options.namespace or who.namespace, options.pod, name
        )
    finally:
        await client.close()


async def release_one(
    hand: ByHand, options: ReleaseOptions, namespace: str, pod: str, who: str
) -> int:
    """Release one pod and report. Return the exit code. Raises No, InvalidInput, ClusterError."""
    if not await hand.may_release(namespace):
        raise permission_error(
            who, f"pods of namespace {namespace}", "a RoleBinding or ClusterRoleBinding"
        )
    try:
        held = await hand.find_held(namespace, pod)
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
        print_result(options, facts, f"Pod {full} is not held by Fairgate; nothing was changed.")
        return 0
    confirm(options, f"Release pod {full} by hand? It skips its queue, and cannot be held again.")
    held, unprotected = await hand.protect_claims(held)
    for each in unprotected:
        warn(f"not protected from being exchanged: {each}")
    outcome = await hand.release(held)
    done = outcome.result is ManualReleaseResult.RELEASED
    facts |= {"released": done, "otherGates": list(outcome.pod.other_gates), "why": outcome.why}
    if outcome.result in (ManualReleaseResult.REFUSED, ManualReleaseResult.UNKNOWN):
        print_result(options, facts, "")
        warn(f"pod {full} was not released: {outcome.why}")
        return exit_code([outcome])
    if not done:
        facts["why"] = "not held"
        print_result(options, facts, f"Pod {full} was released, or deleted, meanwhile.")
        return 0
    lines = [f"Released pod {full} by hand{as_user(who)}. From now on it counts as used."]
    if outcome.pod.other_gates:
        lines.append(
            f"It still carries {', '.join(outcome.pod.other_gates)}, which is not Fairgate's: it "
            "starts when the owner of that removes it."
        )
    print_result(options, facts, "\n".join(lines))
    await _record(hand, outcome.pod, f"by hand{as_user(who)}, past its queue")
    return 0


async def _record(hand: ByHand, pod: GatedPod, message: str) -> None:
    try:
        await hand.emit_event(pod, message)
    except ClusterError as error:
        warn(f"no event was written on the pod, for its owner to see: {error}")
