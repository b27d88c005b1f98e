"""The faults of a soak: each one breaks something and returns a function that repairs it.

Each fault chooses its program or node with its own random generator, so that a seed always breaks
the same things.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from random import Random
from typing import Any

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.nodes import create_nodes
from tests.faults.external_programs import Daemon
from tests.faults.fault_cluster import Rig
from tests.faults.points import POINTS
from tests.faults.program import Program
from tests.faults.tcp_proxy import Cable
from tests.support.cluster_driver import GPU, tenant

Mend = Callable[[], object]
Fault = Callable[[Rig, Random], Mend]

LEASE = "/apis/coordination.k8s.io/v1/namespaces/fairgate-system/leases/fairgate-controller"
ENFORCED = "/apis/admissionregistration.k8s.io/v1"


def nothing() -> None:
    """The repair of a fault that ends by itself."""


def leader(rig: Rig, random: Random) -> Program:
    """Return the leader, or any controller if there is no leader."""
    controllers = rig.of("controller")
    leading = [each for each in controllers if each.metric("fairgate_leader") == 1]
    return (leading or controllers)[0]


def webhook(rig: Rig, random: Random) -> Program:
    return random.choice(rig.of("webhook"))


Choice = Callable[[Rig, Random], Program]


def killed(choose: Choice, sign: int = signal.SIGKILL) -> Fault:
    """Kill a program; another process replaces it."""

    def fault(rig: Rig, random: Random) -> Mend:
        program = choose(rig, random)
        program.kill(sign)
        return lambda: rig.start(program.role, wait=False)

    return fault


def stopped(choose: Choice) -> Fault:
    def fault(rig: Rig, random: Random) -> Mend:
        program = choose(rig, random)
        program.stop()
        return program.cont

    return fault


def crashing(rig: Rig, random: Random) -> Mend:
    """The next leader kills itself at a given point of a release."""
    point = f"{random.choice(POINTS)}:{random.randint(1, 12)}"
    victim = rig.start("controller", crash_at=point)
    for other in rig.of("controller"):
        if other is not victim:
            other.kill(signal.SIGTERM)
    return victim.kill


def stopping(rig: Rig, random: Random) -> Mend:
    """The next leader stops itself right before it sends a patch."""
    victim = rig.start("controller", stop_at=f"before_patch:{random.randint(1, 12)}")
    for other in rig.of("controller"):
        if other is not victim:
            other.kill(signal.SIGTERM)
    rig.start("controller", wait=False)

    def mend() -> None:
        victim.cont()
        victim.kill(signal.SIGTERM)

    return mend


def cable(line: str, trouble: str) -> Fault:
    """Disturb the leader's connection to the API server or to Redis."""

    def fault(rig: Rig, random: Random) -> Mend:
        broken: Cable = getattr(leader(rig, random), line)
        troubles: dict[str, Callable[[], None]] = {
            "cut": broken.cut,
            "slow": lambda: broken.delay(random.choice((0.05, 0.2, 0.5))),
            "silent": broken.freeze,
            "deaf": lambda: broken.freeze(replies_only=True),
            "lossy": lambda: broken.lose(random.randint(1, 8)),
            "dropped": broken.drop,
        }
        troubles[trouble]()
        return broken.mend

    return fault


def front(trouble: str) -> Fault:
    """Break or slow down the API server's connection to the webhook."""

    def fault(rig: Rig, random: Random) -> Mend:
        troubles: dict[str, Callable[[], None]] = {
            "cut": rig.front.cut,
            "slow": lambda: rig.front.delay(0.3),
            "silent": rig.front.freeze,
        }
        troubles[trouble]()
        return rig.front.mend

    return fault


def redis_emptied(rig: Rig, random: Random) -> Mend:
    rig.redis_server.flush()
    return nothing


def redis_restarted(*, empty: bool) -> Fault:
    def fault(rig: Rig, random: Random) -> Mend:
        if not empty:
            rig.redis_server.save()
        rig.redis_server.kill()
        return lambda: rig.redis_server.start(empty=empty)

    return fault


def daemon(name: str, trouble: str) -> Fault:
    """Kill or stop a program of the control plane, or Redis, for a while."""

    def fault(rig: Rig, random: Random) -> Mend:
        victim: Daemon = getattr(rig, name)
        if trouble == "killed":
            victim.kill()
            return victim.start
        victim.stop()
        return victim.cont

    return fault


def lease_deleted(rig: Rig, random: Random) -> Mend:
    delete(rig, LEASE)
    return nothing


def lease_and_redis_gone(rig: Rig, random: Random) -> Mend:
    delete(rig, LEASE)
    rig.redis_server.flush()
    return nothing


def lease_given_away(rig: Rig, random: Random) -> Mend:
    """Give the lease to an unknown holder, or to a controller that did not acquire it."""
    holder = random.choice(["a-stranger", *(each.identity for each in rig.of("controller"))])
    lease = ("lease", "fairgate-controller", "-n", "fairgate-system")
    patch(rig, {"spec": {"holderIdentity": holder}}, *lease)
    return nothing


def webhook_configuration_deleted(rig: Rig, random: Random) -> Mend:
    kind = random.choice(("mutatingwebhookconfigurations", "validatingwebhookconfigurations"))
    delete(rig, f"{ENFORCED}/{kind}/fairgate")
    return nothing


def tenant_changed(rig: Rig, random: Random) -> Mend:
    """Change the weight or the limit of a tenant, or pause it."""
    namespace = random.choice(("load-a", "load-b", "load-c"))
    spec: dict[str, Any] = {"paused": random.random() < 0.2}
    if random.random() < 0.5:
        limit = {GPU: random.choice((4, 8, 16))}
        spec["quotas"] = [{"pool": "default", "limit": limit}]
    weight = str(random.choice((1, 2, 5)))
    rig.stage.apply("default", tenant(f"t-{namespace}", weight, namespace, **spec))
    return lambda: rig.stage.apply("default", tenant(f"t-{namespace}", "1", namespace))


def node_shrunk(rig: Rig, random: Random) -> Mend:
    name = f"gpu-node-{random.randrange(4)}"

    def resize(gpus: int) -> None:
        room = {GPU: str(gpus)}
        status = {"status": {"capacity": room, "allocatable": room}}
        patch(rig, status, "node", name, "--subresource=status")

    resize(random.choice((0, 2, 4)))
    return lambda: resize(8)


def node_gone(rig: Rig, random: Random) -> Mend:
    delete(rig, f"/api/v1/nodes/gpu-node-{random.randrange(4)}")

    def mend() -> None:
        with rig.admin() as api:
            for group in ClusterOptions(nodes=4, gpus=8).node_groups():
                create_nodes(api, group)

    return mend


def pods_deleted(rig: Rig, random: Random) -> Mend:
    """Delete all pods of one team at once, gracefully or by force."""
    namespace = random.choice(("load-a", "load-b", "load-c"))
    grace = random.choice(("?gracePeriodSeconds=0", ""))
    delete(rig, f"/api/v1/namespaces/{namespace}/pods{grace}")
    return nothing


def delete(rig: Rig, path: str) -> None:
    """Delete the objects at a path, if any. A busy server may delete only a part."""
    with rig.admin() as api:
        try:
            api.call("DELETE", path)
        except ClusterUnavailable:
            pass
        except ClusterRefused as error:
            if error.status != 404:
                raise


def patch(rig: Rig, document: object, *named: str) -> None:
    """Merge a document into an object, if the object exists."""
    try:
        rig.cluster.kubectl("patch", *named, "--type=merge", "-p", json.dumps(document))
    except ClusterError as error:
        if "NotFound" not in str(error):
            raise


FAULTS: dict[str, Fault] = {
    "leader killed": killed(leader),
    "leader ended politely": killed(leader, signal.SIGTERM),
    "leader stands still": stopped(leader),
    "leader kills itself in a release": crashing,
    "leader stands still before a patch": stopping,
    **{
        f"leader's cable to {name} is {trouble}": cable(line, trouble)
        for line, name in (("api", "the API server"), ("redis", "Redis"))
        for trouble in ("cut", "slow", "silent", "deaf", "lossy", "dropped")
    },
    "a webhook killed": killed(webhook),
    "a webhook ended politely": killed(webhook, signal.SIGTERM),
    "a webhook stands still": stopped(webhook),
    "webhooks cut off": front("cut"),
    "webhooks slow": front("slow"),
    "webhooks silent": front("silent"),
    "Redis emptied": redis_emptied,
    "Redis restarted empty": redis_restarted(empty=True),
    "Redis restarted": redis_restarted(empty=False),
    "Redis stands still": daemon("redis_server", "stopped"),
    "API server killed": daemon("api_server", "killed"),
    "API server stands still": daemon("api_server", "stopped"),
    "etcd killed": daemon("etcd", "killed"),
    "etcd stands still": daemon("etcd", "stopped"),
    "lease deleted": lease_deleted,
    "lease deleted and Redis emptied": lease_and_redis_gone,
    "lease given away": lease_given_away,
    "webhook configuration deleted": webhook_configuration_deleted,
    "tenant changed": tenant_changed,
    "node shrunk": node_shrunk,
    "node gone": node_gone,
    "pods of a team deleted": pods_deleted,
}
