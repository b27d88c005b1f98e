"""Implementation of `fairgate nodes`: checks nodes, prints findings, and adds labels on request.

`label_findings` finds the problems. Results go to standard output, messages to stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from app.commands.nodes.gpu_products import is_value
from app.commands.nodes.label_findings import Inventory, LabelFinding, Labelling, labellings
from app.commands.nodes.survey import Survey
from app.commands.nodes.unmanaged_pods import NO_POOL, Crowd, sum_by_pool
from app.commands.release.console import NO, UNREACHABLE
from app.core.errors import ClusterError, ClusterRefused, InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.core.quantities import CPU, MIB, ManagedResources, format_amount
from app.kube import kubeconfig as kubeconfig_files
from app.kube.client import Client
from app.terminal.output import Item, Listing, OutputOptions, as_text, warn


def _node(item: Item) -> str:
    return f"node/{item['node']}"


FINDINGS = Listing(itemgetter("findings"), _node)
CHANGES = Listing(itemgetter("changes"), _node)

MOST_NAMES = 20
"""Maximum number of pod names in a result."""


@dataclass(frozen=True, slots=True)
class NodesOptions:
    """Arguments that both commands have."""

    kubeconfig: KubeconfigOptions
    managed: str
    exempt: str
    output: OutputOptions

    @property
    def resources(self) -> ManagedResources:
        """Return the resources that count as devices."""
        return ManagedResources(filter(None, map(str.strip, self.managed.split(","))))


@dataclass(frozen=True, slots=True)
class LabelRequest:
    """Arguments of `label`. Empty `names` mean all nodes."""

    names: tuple[str, ...]
    product: str | None
    dry_run: bool
    yes: bool


Act = Callable[[Survey, NodesOptions], Awaitable[int]]


def run(options: NodesOptions, act: Act) -> None:
    """Run a command. Raises FairgateError, and SystemExit with 1 or 3 for a negative result."""
    who = kubeconfig_files.find_caller(options.kubeconfig, os.environ)

    async def go() -> int:
        client = await Client.connect_with(who.options)
        try:
            return await act(Survey(client), options)
        finally:
            await client.close()

    if code := asyncio.run(go()):
        raise SystemExit(code)


async def check(survey: Survey, options: NodesOptions) -> int:
    """Print all findings. Return the exit code."""
    inventory = Inventory(await survey.nodes(), options.resources, await survey.pools())
    exempt = frozenset(filter(None, map(str.strip, options.exempt.split(","))))
    others = await survey.pods_without_devices(options.resources, exempt)
    findings = inventory.findings()
    homes = {
        node.name: str(next(iter(inventory.pools_of(node)), NO_POOL))
        for node in inventory.with_devices()
    }
    found = sum_by_pool(others or (), homes)
    if options.output.is_data:
        document = _document(inventory, findings, found, others is not None)
        print(as_text(options.output, document, FINDINGS))
    else:
        _print(inventory, findings, found)
    if others is None:
        warn("pods are not counted: the caller may not list them.")
    return NO if findings else 0


async def label(survey: Survey, options: NodesOptions, request: LabelRequest) -> int:
    """Add missing labels after a confirmation. Return the exit code. Raises InvalidInput."""
    if request.product is not None and not is_value(request.product):
        raise InvalidInput(
            f"--product {request.product[:80]!r} cannot be the value of a label: write letters, "
            "digits, -, _ and ., 63 at most."
        )
    inventory = Inventory(await survey.nodes(), options.resources)
    unheard = sorted(set(request.names) - {node.name for node in inventory.nodes})
    if unheard:
        raise InvalidInput(f"There is no node {', '.join(unheard)}; kubectl get nodes lists them.")
    changes, unknown = labellings(inventory, request.names, request.product or "")
    text = not options.output.is_data
    for change in changes if text or not request.yes else ():
        (print if text else warn)(f"{change.node.name}: {_describe_change(change)}")
    for name in unknown:
        warn(f"node {name}: its GPU model is unknown; add --product NAME.")
    results = await _apply_changes(survey, changes, request)
    if text:
        _sum_up(results, unknown, request)
    else:
        told = [_result(change, *result) for change, result in zip(changes, results, strict=True)]
        print(as_text(options.output, {"changes": told, "unknown": unknown}, CHANGES))
    if any(result == "no-answer" for result, _ in results):
        return UNREACHABLE
    failed = any(result not in ("labelled", "would-label") for result, _ in results)
    return NO if failed or unknown else 0


async def _apply_changes(
    survey: Survey, changes: Sequence[Labelling], request: LabelRequest
) -> list[tuple[str, str]]:
    """Write the changes, unless it is a dry run. Return result and reason of each."""
    if request.dry_run or not changes:
        return [("would-label", "")] * len(changes)
    if not request.yes:
        if not sys.stdin.isatty():
            raise InvalidInput(
                "There is no terminal to confirm on: add --yes to write the "
                "labels, or --dry-run to preview."
            )
        sys.stderr.write(f"Label {_count(len(changes), 'node')}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            warn("nothing was changed.")
            return [("declined", "")] * len(changes)
    return [await _write(survey, change) for change in changes]


async def _write(survey: Survey, change: Labelling) -> tuple[str, str]:
    try:
        await survey.write_label(change)
    except ClusterRefused as error:
        if error.status in (404, 409, 422):
            why = "it changed meanwhile; run the command again"
            warn(f"node {change.node.name}: {why}.")
            return "changed-meanwhile", why
        warn(f"node {change.node.name}: {error}")
        return "refused", str(error)
    except ClusterError as error:
        warn(f"node {change.node.name}: {error}")
        return "no-answer", str(error)
    return "labelled", ""


def _describe_change(change: Labelling) -> str:
    return f"{change.label}={change.product.name} ({change.product.source})"


def _sum_up(
    results: Sequence[tuple[str, str]], unknown: Sequence[str], request: LabelRequest
) -> None:
    if not results and not unknown:
        print("Nothing to label.")
    elif request.dry_run:
        print(f"{_count(len(results), 'node')} would be labelled.")
    else:
        done = sum(result == "labelled" for result, _ in results)
        print(f"{_count(done, 'node')} labelled.")


def _result(change: Labelling, result: str, why: str) -> dict[str, Any]:
    told = {"node": change.node.name, "label": change.label, "value": change.product.name}
    return {**told, "source": change.product.source, "result": result, "why": why}


def _print(
    inventory: Inventory, findings: Sequence[LabelFinding], found: Mapping[str, Crowd]
) -> None:
    for each in findings:
        print(f"node {each.node}: {each.message}")
    for pool, crowd in found.items():
        where = f"pool {pool}" if pool else "nodes in no pool"
        room = ", ".join(f"{value} of {r}" for r, value in _room(crowd).items()) or "nothing"
        print(
            f"{where}: {_count(len(crowd.nodes), 'node')} with GPUs run "
            f"{_count(crowd.pods, 'pod')} without GPUs, which use {room}."
        )
    total = len(inventory.with_devices())
    odd = len({each.node for each in findings})
    nodes = f"{_count(total, 'node')} with GPUs, of {len(inventory.nodes)}"
    print(f"{nodes}; {odd or 'none'} with findings.")


def _document(
    inventory: Inventory,
    findings: Sequence[LabelFinding],
    found: Mapping[str, Crowd],
    counted: bool,
) -> dict[str, Any]:
    return {
        "nodes": len(inventory.nodes),
        "withDevices": len(inventory.with_devices()),
        "findings": [
            {
                "node": each.node,
                "trouble": each.trouble.value,
                "message": each.message,
                "label": each.label,
                "product": each.product.name if each.product else "",
                "source": each.product.source if each.product else "",
                "pools": list(each.pools),
            }
            for each in findings
        ],
        "others": [
            {
                "pool": pool,
                "pods": crowd.pods,
                "nodes": sorted(crowd.nodes),
                "room": _room(crowd),
                "names": crowd.names[:MOST_NAMES],
            }
            for pool, crowd in found.items()
        ]
        if counted
        else None,
    }


def _room(crowd: Crowd) -> dict[str, str]:
    return {
        str(r): format_amount(r, value) if r == CPU else f"{-(-value // MIB)}Mi"
        for r, value in sorted(crowd.used.items())
    }


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
