"""CPU per one-GPU pod with one part of Fairgate left out at a time.

One cluster with Fairgate. Policies and webhooks are removed from the ConfigMap of the watchdog.
Events and status writes are refused by RBAC, so they still cost a refused request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop
import yaml

from app.core.errors import ClusterRefused
from app.devcluster.cluster import LocalCluster
from app.devcluster.progress import ConsoleProgress, SetupProgress
from app.devcluster.signals import signals_as_interrupt
from app.kube.client import MERGE_PATCH, Client
from loadtest import load
from loadtest.bench_cluster import BINDINGS, RULES
from loadtest.cost import API_SERVER, FAIRGATE, WARM_UP, Side, Turn, clusters, connected
from loadtest.figures import Compared, Measure, Series, turns

PODS = 300
ROUNDS = 2
ALL = "everything on"
HOOKS = "/apis/admissionregistration.k8s.io/v1/{}s/fairgate"
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairgate-controller"
POLICIES = ("create", "update", "status", "bind")
VALIDATING = tuple(f"{name}.fairgate.io" for name in POLICIES)
MUTATING = ("update-pod.fairgate.io",)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Parts that an arm leaves out: policies and webhooks by name, resources that RBAC refuses."""

    policies: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    role: str = ""


ARMS: dict[str, LeftOut] = {
    ALL: LeftOut(),
    **{f"without policy fairgate-{name}": LeftOut(policies=(name,)) for name in POLICIES},
    **{f"without webhook {name}": LeftOut(webhooks=(name,)) for name in (*VALIDATING, *MUTATING)},
    "without these policies": LeftOut(policies=POLICIES),
    "without these validating webhooks": LeftOut(webhooks=VALIDATING),
    "without both": LeftOut(policies=POLICIES, webhooks=VALIDATING),
    "without events": LeftOut(resources=("events",)),
    "without status writes": LeftOut(resources=("tenants/status", "pools/status")),
    "without the API replica": LeftOut(role="api"),
}


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Measure `pods` pods in each arm and round; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    with signals_as_interrupt(), clusters(progress, (FAIRGATE,)) as up:
        taken = uvloop.run(_measure(up[FAIRGATE], pods, rounds, progress))
    whole = taken[ALL]
    return Measure(
        "ablation",
        f"CPU of {API_SERVER} per one-GPU pod, with parts left out",
        (f"{pods} pods a turn, {rounds} rounds in turns; the ratios are to everything on.",),
        tuple(
            Series(arm, "ms", tuple(turn.per_pod[API_SERVER] for turn in turns_of))
            for arm, turns_of in taken.items()
        ),
        tuple(_ratio(arm, taken[arm], whole) for arm in ARMS if arm != ALL),
    )


def _ratio(arm: str, part: list[Turn], whole: list[Turn]) -> Compared:
    pairs = zip(part, whole, strict=True)
    values = tuple(a.per_pod[API_SERVER] / b.per_pod[API_SERVER] for a, b in pairs)
    return Compared(Series(arm, "", values))


async def _measure(
    cluster: LocalCluster, pods: int, rounds: int, progress: SetupProgress
) -> dict[str, list[Turn]]:
    side = await connected(cluster)
    try:
        with progress.step("ablation: warming up"):
            await side.turn(min(pods, WARM_UP), 1)
        taken: dict[str, list[Turn]] = {arm: [] for arm in ARMS}
        for number, arm in turns(list(ARMS), rounds):
            with progress.step(f"ablation, round {number} of {rounds}: {arm}"):
                async with left_out(side, ARMS[arm]):
                    taken[arm].append(await side.turn(pods, 1))
        return taken
    finally:
        await side.client.close()


@asynccontextmanager
async def left_out(side: Side, parts: LeftOut) -> AsyncIterator[None]:
    """Leave these parts out while the block runs."""
    client = side.client
    written = (await load.read(client, RULES))["data"]
    role = await load.read(client, ROLE)
    await _write(client, without(written, parts))
    for name in parts.policies:
        await client.request("DELETE", f"{BINDINGS}/fairgate-{name}")
    rules = [
        each for each in role["rules"] if not set(each.get("resources", ())) & {*parts.resources}
    ]
    await client.request("PATCH", ROLE, body={"rules": rules}, content_type=MERGE_PATCH)
    if parts.role:
        await asyncio.to_thread(side.cluster.stop_fairgate, parts.role)
    await load.until(partial(_are_as, client, parts, False), "the parts stay")
    try:
        yield
    finally:
        await _write(client, written)
        body = {"rules": role["rules"]}
        await client.request("PATCH", ROLE, body=body, content_type=MERGE_PATCH)
        if parts.role:
            await asyncio.to_thread(side.cluster.start_fairgate, parts.role)
        await load.until(partial(_are_as, client, parts, True), "the parts do not come back")


def without(data: dict[str, str], parts: LeftOut) -> dict[str, str]:
    """Return the data of the ConfigMap without these bindings and webhooks."""
    bindings = {f"fairgate-{name}" for name in parts.policies}
    found = dict(data)
    for key in ("webhooks.yaml", "policies.yaml"):
        kept: list[dict[str, Any]] = []
        for each in filter(None, yaml.safe_load_all(data[key])):
            if each["kind"].endswith("Binding") and each["metadata"]["name"] in bindings:
                continue
            if "webhooks" in each:
                each["webhooks"] = [w for w in each["webhooks"] if w["name"] not in parts.webhooks]
            kept.append(each)
        found[key] = yaml.safe_dump_all(kept)
    return found


async def _write(client: Client, data: dict[str, str]) -> None:
    await client.request("PATCH", RULES, body={"data": data}, content_type=MERGE_PATCH)


async def _are_as(client: Client, parts: LeftOut, present: bool) -> bool:
    """Return whether all the policies and webhooks are present, or all are absent."""
    names: set[str] = set()
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        names |= {w["name"] for w in (await load.read(client, HOOKS.format(kind)))["webhooks"]}
    found = [name in names for name in parts.webhooks]
    for name in parts.policies:
        try:
            await client.request("GET", f"{BINDINGS}/fairgate-{name}")
        except ClusterRefused:
            found.append(False)
        else:
            found.append(True)
    return all(each is present for each in found)
