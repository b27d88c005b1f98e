"""Pod creations per second: without a webhook, with a no-op webhook, and with Fairgate.

All pods are created with a gate of the benchmark, so they are never scheduled. Fairgate's
controller is stopped. The measure therefore compares the cost of admission only.
"""

from __future__ import annotations

from functools import partial

from app.core.well_known import GATE
from loadtest import load, noop_webhook
from loadtest.bench_cluster import UNPOLICIED, BenchCluster
from loadtest.figures import Measure, Target, columns, rate, ratio, turns

NAME = "creations"
PODS = 500
ROUNDS = 16
"""Many short turns, so that other load on the machine affects all arms equally."""

WARM_UP = 300
TARGET = Target(least=0.85)
WEBHOOK_TARGET = Target(least=0.9)

ARMS = {
    "none": "no webhook",
    "noop": "no-op webhook in Go",
    "filtered": "no-op, Fairgate's conditions",
    "unpolicied": "Fairgate, its policies off",
    "fairgate": "Fairgate, everything on",
}
"""`filtered`: the API server calls the no-op under the matchConditions of Fairgate's webhook, which
separates the cost of the conditions from the cost of the webhook."""

NAMESPACES = {
    "none": "bench-none",
    "noop": "bench-noop",
    "filtered": "bench-filtered",
    "unpolicied": UNPOLICIED,
    "fairgate": "bench-created",
}
GATES = {
    "none": [load.OWN_GATE],
    "noop": [load.OWN_GATE, noop_webhook.GATE],
    "filtered": [load.OWN_GATE, noop_webhook.GATE],
    "unpolicied": [load.OWN_GATE, GATE],
    "fairgate": [load.OWN_GATE, GATE],
}
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


async def measure(bench: BenchCluster, pods: int | None, rounds: int | None) -> Measure:
    """Create `pods` pods in each arm and round; None means the default."""
    pods, rounds = pods or PODS, rounds or ROUNDS
    await _prepare(bench)
    with bench.step("creations: warming up"):
        for arm in ARMS:
            await _turn(bench, arm, min(pods, WARM_UP))
    taken: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for number, arm in turns(list(ARMS), rounds):
        with bench.step(f"creations, round {number} of {rounds}: {ARMS[arm]}"):
            taken[arm].append(await _turn(bench, arm, pods))
    await bench.start_controller()
    figures = columns(ARMS, "pods/s", taken)
    return Measure(
        NAME,
        "Pod creations",
        (
            f"{pods} one-GPU pods a round and arm over {load.CONNECTIONS} connections, "
            f"{rounds} rounds taken in turns.",
            "Fairgate's controller is stopped in this measure, and a gate of the bench keeps "
            "scheduler and nodes out of it.",
        ),
        tuple(figures.values()),
        (
            ratio("Fairgate / no-op", figures["fairgate"], figures["noop"], TARGET),
            ratio("policies off / no-op", figures["unpolicied"], figures["noop"], WEBHOOK_TARGET),
            ratio(
                "policies off / no-op, its conditions", figures["unpolicied"], figures["filtered"]
            ),
            ratio("Fairgate / none", figures["fairgate"], figures["none"]),
            ratio("no-op / none", figures["noop"], figures["none"]),
        ),
    )


async def _prepare(bench: BenchCluster) -> None:
    for namespace in NAMESPACES.values():
        await load.create_namespace(bench.client, namespace)
    await bench.stop_controller()
    await bench.lift_policies()
    client_config = noop_webhook.start(bench.folder)
    conditions = (await load.read(bench.client, f"{WEBHOOKS}/fairgate"))["webhooks"][0].get(
        "matchConditions", []
    )
    for arm, asked in (("noop", []), ("filtered", conditions)):
        body = noop_webhook.configuration(arm, client_config, NAMESPACES[arm], asked)
        await load.create(bench.client, WEBHOOKS, body)
    for arm in ARMS:  # a new webhook configuration takes effect with a delay
        await load.until(partial(_holds, bench, arm), f"{ARMS[arm]} is not asked")


async def _turn(bench: BenchCluster, arm: str, pods: int) -> float:
    """Create the pods of one turn and delete them again; return the pods per second."""
    namespace = NAMESPACES[arm]
    bodies = [load.pod(name, gated=True) for name in load.names(pods)]
    seconds = await load.create_pods(bench.client, namespace, bodies)
    found = await load.gates_of(bench.client, namespace, load.names(pods)[-1])
    if found != GATES[arm]:
        raise load.BenchFailed(
            f"Pods made with {ARMS[arm]} carry the gates {found} instead of {GATES[arm]}; "
            "the measure would not compare what it says."
        )
    await load.clear(bench.client, [namespace])
    return rate(pods, seconds)


async def _holds(bench: BenchCluster, arm: str) -> bool:
    """Return whether a new pod of this arm gets the expected gates."""
    namespace, name = NAMESPACES[arm], "probe"
    await load.create_pod(bench.client, namespace, load.pod(name, gated=True))
    found = await load.gates_of(bench.client, namespace, name)
    await load.clear(bench.client, [namespace])
    return found == GATES[arm]
