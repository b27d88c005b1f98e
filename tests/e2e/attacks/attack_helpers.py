"""Helpers of the attacks: users with rights, and pods for modes without a webhook."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from tests.e2e.attacks.attack_cluster import OPEN, RED, AttackEnvironment, Object, path
from tests.support.cluster_driver import until
from tests.support.personas import Person, Refused, person

RBAC = "rbac.authorization.k8s.io"

CREATED = {"everything": "W", "policies": "P", "webhook": "W", "killed": "outage"}
"""The layer that refuses a create which the holding webhook already refuses, by mode."""
STORED = {"everything": "P", "policies": "P", "webhook": "W", "killed": "outage"}
"""The layer that refuses a create only after the webhook has completed the pod, by mode."""
CHANGED = {"everything": "P", "policies": "P", "webhook": "W", "killed": "P"}
"""The layer that refuses a change, by mode."""


def somebody(
    env: AttackEnvironment, name: str, *rules: Object, namespace: str | None = RED
) -> Person:
    """Return a user with these rights in a namespace, or in all namespaces if it is None.

    The function waits until the last verb of each rule works on its last resource.
    """
    kind = "Role" if namespace else "ClusterRole"
    where = {"namespace": namespace} if namespace else {}
    root = f"/apis/{RBAC}/v1" + (f"/namespaces/{namespace}" if namespace else "")
    role = {"metadata": {"name": name, **where}, "rules": list(rules)}
    binding = {
        "metadata": {"name": name, **where},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": name}],
    }
    for suffix, what in (("", role), ("Binding", binding)):
        document = {"apiVersion": f"{RBAC}/v1", "kind": kind + suffix, **what}
        env.admin.refused("POST", f"{root}/{kind.lower()}{suffix.lower()}s", document)
    who = person(env.cluster, name)
    until(f"{name} has these rights", lambda: all(_may(who, namespace, rule) for rule in rules))
    return who


def _may(who: Person, namespace: str | None, rule: Object) -> bool:
    resource, _, sub = rule["resources"][-1].partition("/")
    asked = {"group": rule["apiGroups"][0], "resource": resource, "verb": rule["verbs"][-1]}
    if sub:
        asked["subresource"] = sub
    if namespace:
        asked["namespace"] = namespace
    spec = {"resourceAttributes": asked}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(who.call("POST", reviews, {**body, "spec": spec})["status"]["allowed"])


def rule(verbs: str, *resources: str, group: str = "") -> Object:
    """Return an RBAC rule."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}


def ready(
    env: AttackEnvironment, body: Object, user: str = "mallory", namespace: str = RED
) -> Object:
    """Return a pod in the form that can be stored in this mode.

    If no webhook completes the pod, gate and stamps are written by hand.
    """
    return env.stamped(body, user, namespace) if env.mode == "policies" else body


def submit(env: AttackEnvironment, body: Object) -> Object:
    """Create a pod of Mallory in `red`, in a mode that allows it, and return it."""
    made: Object = env.mallory.call("POST", path(RED), ready(env, body))
    return made


def answer(who: Person, method: str, at: str, body: object = None, kind: str = "merge") -> Any:
    """Return the object, or `Refused` with the status and the message."""
    try:
        return who.call(method, at, body, kind)
    except Refused as error:
        return error


def remove(env: AttackEnvironment, *names: str, namespace: str = RED) -> None:
    """Delete pods at once and wait until they are gone."""
    now = {"gracePeriodSeconds": 0}
    for name in names:
        env.admin.refused("DELETE", path(namespace, name), now)
    for name in names:
        until(f"{name} is gone", gone(env, name, namespace))


def gone(env: AttackEnvironment, name: str, namespace: str = RED) -> Callable[[], bool]:
    """Return a function that reports whether a pod is gone."""
    return lambda: not env.exists(name, namespace)


def told(env: AttackEnvironment, name: str, words: str, namespace: str = RED) -> Callable[[], bool]:
    """Return a function that reports whether an event of a pod contains these words."""
    at = f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}"
    return lambda: any(words in each["message"] for each in env.admin.get(at)["items"])


def without(gate: str, gates: list[str]) -> list[Object]:
    """Return the patch that removes one gate. It fails if the gates have changed."""
    if gates == [gate]:
        return [OPEN]
    at = f"/spec/schedulingGates/{gates.index(gate)}"
    return [{"op": "test", "path": f"{at}/name", "value": gate}, {"op": "remove", "path": at}]


def with_token(env: AttackEnvironment, namespace: str, account: str) -> Person:
    """Return a service account that authenticates with its own token."""
    token = env.cluster.kubectl("create", "token", account, "-n", namespace).strip()
    document = yaml.safe_load(env.cluster.create_user("nobody"))
    document["users"][0]["user"] = {"token": token}
    return Person(yaml.safe_dump(document))
