"""A cluster in one enforcement mode, and the users that attack it.

All users have their own credentials and talk to an unmodified API server.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import yaml

from app.core.release_patch import label_value
from app.devcluster import state_dir as folders
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from tests.support.cluster_driver import GATE, GPU, gates, until
from tests.support.enforcement_layers import HOLDING, VALIDATING, keep_only
from tests.support.personas import Person, person

Object = dict[str, Any]

MODES = ("everything", "policies", "webhook", "killed")
"""All layers; policies alone; webhook alone; all layers with every webhook process killed."""

RED, BLUE = "red", "blue"
"""Namespaces of two teams. Mallory may edit `red`, and Bob may edit `blue`."""

SPARES = 40
PARKED = 6
RUNNING = 12
TOO_MANY = 9
"""More GPUs than any node has. A pod that requests them waits for ever."""

OWN_GATE = "example.com/mine"
"""A gate that Mallory may add to a pod and remove."""

NODE = "gpu-node-0"
TWIN = {"priorityClassName": "fairgate.none", "preemptionPolicy": "Never"}


@dataclass
class AttackEnvironment:
    """A cluster of four nodes with 8 GPUs each, with Fairgate in one mode."""

    cluster: LocalCluster
    mode: str
    admin: Person
    mallory: Person
    bob: Person
    chief: Person
    """A user with the ClusterRole `admin` in `red`."""
    node: Person
    scheduler: Person
    waiting: list[str] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=itertools.count)

    def name(self, what: str = "pod") -> str:
        """Return an unused name."""
        return f"{what}-{next(self._names)}"

    def held(self) -> str:
        """Return an unused held pod of Mallory in `red`."""
        return self.waiting.pop()

    def released(self) -> str:
        """Return an unused pod of Mallory in `red` that was released and runs."""
        return self.running.pop()

    def own_gated(self) -> str:
        """Return an unused pod of Mallory in `red` that has OWN_GATE and Fairgate's gate."""
        return self.parked.pop()

    def pod(self, name: str, namespace: str = RED) -> Object:
        """Return a pod as stored."""
        found: Object = self.admin.get(path(namespace, name))
        return found

    def is_held(self, name: str, namespace: str = RED) -> bool:
        """Return whether a stored pod has Fairgate's gate."""
        return GATE in gates(self.pod(name, namespace))

    def exists(self, name: str, namespace: str = RED) -> bool:
        """Return whether a pod exists."""
        return self.admin.refused("GET", path(namespace, name), None) is None

    def stored(
        self, body: Object, who: Person | None = None, namespace: str = RED
    ) -> Object | None:
        """Create a pod as Mallory or another user. Return the stored pod, or None if refused."""
        made = (who or self.mallory).refused("POST", path(namespace), body)
        return None if made is not None else self.pod(body["metadata"]["name"], namespace)

    def stamped(self, body: Object, user: str = "mallory", namespace: str = RED) -> Object:
        """Return a pod with a hand-written gate, stamps and class, as the webhook writes them."""
        metadata, spec = dict(body["metadata"]), dict(body["spec"])
        stamps = {"fairgate.io/release": "0", "fairgate.io/submitter": user}
        labels = {"fairgate.io/tenant": f"ns.{namespace}", "fairgate.io/user": label_value(user)}
        metadata["annotations"] = {**metadata.get("annotations", {}), **stamps}
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
        spec = {"schedulingGates": [{"name": GATE}], **TWIN, **spec}
        return {**body, "metadata": metadata, "spec": spec}


def path(namespace: str, name: str = "", sub: str = "") -> str:
    """Return the API path of pods, of one pod, or of a subresource."""
    whole = f"/api/v1/namespaces/{namespace}/pods"
    return "/".join(part for part in (whole, name, sub) if part)


def body(name: str, gpus: int = 1, **spec: Any) -> Object:
    """Return an ordinary pod with a grace period of 0 seconds."""
    container: Object = {"name": "c", "image": "i"}
    if gpus:
        container["resources"] = {"limits": {GPU: gpus}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def layer_of(said: str | None) -> str:
    """Return the layer that refused: P policy, W webhook, outage, R RBAC, K API server."""
    if said is None:
        return "-"
    for mark, layer in (
        ("ValidatingAdmissionPolicy", "P"),
        ("failed calling webhook", "outage"),
        ("admission webhook", "W"),
        ("forbidden: User ", "R"),
    ):
        if mark in said:
            return layer
    return "K"


@contextmanager
def env(mode: str) -> Iterator[AttackEnvironment]:
    """Start a cluster in this mode, and remove it completely at the end."""
    cluster = LocalCluster(folders.own_folder(f"attacks-{mode}"))
    try:
        cluster.up(ClusterOptions(nodes=4))
        place = _people(cluster, mode)
        _prepare(place)
        _enter(place)
        yield place
    finally:
        cluster.down()


def _people(cluster: LocalCluster, mode: str) -> AttackEnvironment:
    for namespace in (RED, BLUE):
        cluster.kubectl("create", "namespace", namespace)
    roles = (("mallory", RED, "edit"), ("bob", BLUE, "edit"), ("chief", RED, "admin"))
    for user, namespace, role in roles:
        grant = (f"--clusterrole={role}", f"--user={user}", "-n", namespace)
        cluster.kubectl("create", "rolebinding", user, *grant)
    mallory, bob, chief = (person(cluster, user) for user, _, _ in roles)
    return AttackEnvironment(
        cluster,
        mode,
        Person(cluster.kubeconfig),
        mallory,
        bob,
        chief,
        person(cluster, f"system:node:{NODE}", ["system:nodes"]),
        person(cluster, "system:kube-scheduler"),
    )


def _prepare(place: AttackEnvironment) -> None:
    """Create the held, parked and running pods before the attacks begin."""
    for namespace in (RED, BLUE):
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        until("pods can be made", lambda at=account: place.admin.refused("GET", at, None) is None)  # type: ignore[misc]
    for number in range(SPARES):
        place.waiting.append(f"waiting-{number}")
        place.mallory.call("POST", path(RED), body(place.waiting[-1], TOO_MANY))
    for number in range(PARKED):
        place.parked.append(f"parked-{number}")
        mine = body(place.parked[-1], schedulingGates=[{"name": OWN_GATE}])
        place.mallory.call("POST", path(RED), mine)
    for number in range(RUNNING):
        place.running.append(f"running-{number}")
        slow = body(place.running[-1], terminationGracePeriodSeconds=3600)
        place.mallory.call("POST", path(RED), slow)
    for name in place.running:
        until(f"{name} runs", lambda n=name: place.pod(n)["status"].get("phase") == "Running")  # type: ignore[misc]


def _enter(place: AttackEnvironment) -> None:
    cluster, mallory = place.cluster, place.mallory
    match place.mode:
        case "policies":
            cluster.stop_fairgate("webhook")
            for kind in (HOLDING, VALIDATING):
                cluster.kubectl("delete", kind, "fairgate")
            at, new = path(RED) + "?dryRun=All", body("probe")
            until("policies hold", lambda: layer_of(mallory.refused("POST", at, new)) == "P")
        case "webhook":
            keep_only(cluster, HOLDING, VALIDATING)
            at = path(RED, place.waiting[0]) + "?dryRun=All"
            refused = partial(mallory.refused, "PATCH", at, [OPEN], "json")
            until("the webhook alone holds", lambda: layer_of(refused()) == "W")
        case "killed":
            cluster.stop_fairgate("webhook", signal.SIGKILL)
        case _:
            pass


OPEN = {"op": "remove", "path": "/spec/schedulingGates"}
"""The patch that removes all gates."""


def documents(*objects: Object) -> str:
    """Return objects as multi-document YAML for kubectl."""
    return yaml.safe_dump_all(objects)
