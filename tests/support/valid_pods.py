"""Random pods that the API server accepts, in every form that it accepts.

Written from the Kubernetes API reference (Pod v1, Quantity), independent of Fairgate's code. `draw`
returns a pod with null fields, quantities in every notation, long names, Unicode and many kinds of
volumes. `broken` breaks one rule of the reference.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random
from typing import Any

Object = dict[str, Any]

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.5gb"
DEVICES = (GPU, GPU, GPU, MIG, "amd.com/gpu")
FOREIGN = ("example.com/nic", "vendor.example/fpga-2.0", "nvidia.com/gpu-other")
ALNUM = string.ascii_lowercase + string.digits
UNICODE = ("", "ä", "日本語", "🚀", "\u202e", "a\tb\nc", "\\", '"', "{}", "\u0001", "e\u0301", "%s")

FOR_USERS = ("max-runtime", "preemptible", "placement", "topology", "gang", "gang-size")

COUNTS = {
    0: ("0", 0, "0.0", "0e3", "0Ki", "00", "0m", None),
    1: ("1", 1, "01", "1.0", "1000m", "1e0", "0.001k", "+1", "1.", "1000000u", " 1 "),
    2: ("2", 2, "2.000", "2000m", "2E0", "0.2e1", "20e-1"),
    1000: ("1k", "1e3", "1E3", "1000", "1000.0", "1000000m", "0.001M", "1e+3"),
    1024: ("1Ki", "1024", "1.024k"),
}
CPUS = ("0.5", "500m", "1", 2, ".5", "1.5", "100m", "1e-1", "1500e-3", "250000u", "3.", "0")
SIZES = (
    *("64Mi", "1Gi", "0.5Gi", "1e9", "128974848", "129e6", "129M", "123Mi", "1.5Gi", "100k"),
    *("1e100", "1E", "8Ei", "1" + 20 * "0", "0." + 45 * "0" + "1", "1e-30"),
    *("9223372036854775807", " 1Gi\n", None),
)
"""None has 21 zeros: the API server would store "1" for it, but validate the whole number."""


def draw(random: Random, *, nulls: bool = True) -> Object:
    """Return a valid pod. `nulls`: absent fields may be written as null."""
    meta: Object = _name(random)
    _maybe(random, meta, "labels", _labels)
    _maybe(random, meta, "annotations", _annotations)
    _maybe(random, meta, "finalizers", lambda r: ["example.com/" + _word(r, 20)], 0.1)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(random)}
    if nulls:
        _sprinkle_nulls(random, pod)
    return pod


def broken(random: Random) -> Object:
    """Return a pod that breaks one rule of the API reference."""
    pod = draw(random, nulls=False)
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    container["resources"] = {"limits": {GPU: "1"}}
    rules: tuple[Callable[[], object], ...] = (
        lambda: container.update(resources={"limits": {GPU: "1500m"}}),
        lambda: container.update(resources={"limits": {GPU: "-1"}}),
        lambda: container.update(resources={"limits": {GPU: "one"}}),
        lambda: container.update(resources={"limits": {GPU: "1 Gi"}}),
        lambda: container.update(resources={"limits": {GPU: "1"}, "requests": {GPU: "2"}}),
        lambda: container.update(resources={"requests": {GPU: "1"}}),
        lambda: container.update(resources={"limits": {GPU: "1", "cpu": "1", "no/t/ok": "1"}}),
        lambda: container.update(resources={"limits": {GPU: "1", "gpus": "1"}}),
        lambda: container.update(name="UPPER"),
        lambda: container.update(image=""),
        lambda: spec.update(containers=[]),
        lambda: spec["containers"].append(dict(container)),
        lambda: spec.update(restartPolicy="Sometimes"),
        lambda: spec.update(nodeSelector={"bad key!": "x"}),
        lambda: spec.update(tolerations=[{"operator": "Maybe"}]),
        lambda: spec.update(schedulingGates=[{"name": "not a name"}]),
        lambda: pod["metadata"].update(labels={"a": "x" * 64}),
        lambda: pod["metadata"].update(annotations={"bad key!": "x"}),
        lambda: spec.update(terminationGracePeriodSeconds=-1),
        lambda: spec.update(activeDeadlineSeconds=0),
    )
    random.choice(rules)()
    return pod


def _spec(random: Random) -> Object:
    containers = [_container(random, f"c{n}") for n in range(random.choice((1, 1, 1, 2, 4)))]
    spec: Object = {"containers": containers}
    _maybe(random, spec, "initContainers", _inits, 0.25)
    _maybe(random, spec, "restartPolicy", lambda r: r.choice(("Always", "Never", "OnFailure")))
    _maybe(random, spec, "nodeSelector", _selector, 0.2)
    _maybe(random, spec, "tolerations", _tolerations, 0.25)
    _maybe(random, spec, "affinity", _affinity, 0.25)
    _maybe(random, spec, "topologySpreadConstraints", _spread, 0.15)
    _maybe(random, spec, "schedulingGates", _gates, 0.15)
    _maybe(random, spec, "terminationGracePeriodSeconds", lambda r: r.choice((0, 1, 30, 3600)))
    _maybe(random, spec, "activeDeadlineSeconds", lambda r: r.choice((1, 600, 2**31 - 1)), 0.2)
    _maybe(random, spec, "volumes", _volumes, 0.25)
    _maybe(random, spec, "securityContext", lambda r: {"runAsUser": r.choice((0, 1000))}, 0.2)
    _maybe(random, spec, "enableServiceLinks", lambda r: r.random() < 0.5, 0.1)
    _maybe(random, spec, "shareProcessNamespace", lambda r: r.random() < 0.5, 0.1)
    _maybe(random, spec, "hostname", lambda r: _word(r, 60), 0.1)
    _maybe(random, spec, "subdomain", lambda r: _word(r, 60), 0.1)
    _maybe(random, spec, "dnsPolicy", lambda r: r.choice(("ClusterFirst", "Default")), 0.1)
    _maybe(random, spec, "hostAliases", lambda _: [{"ip": "10.0.0.1", "hostnames": ["a"]}], 0.05)
    _maybe(random, spec, "imagePullSecrets", lambda r: [{"name": _word(r, 30)}], 0.1)
    _maybe(random, spec, "readinessGates", lambda _: [{"conditionType": "a.example/b"}], 0.05)
    _maybe(random, spec, "schedulerName", lambda _: "default-scheduler", 0.1)
    _maybe(random, spec, "resources", _of_the_pod, 0.05)
    _maybe(random, spec, "os", lambda _: {"name": "linux"}, 0.05)
    return spec


def _container(random: Random, name: str) -> Object:
    container: Object = {
        "name": name,
        "image": random.choice(("a", "r.io/x/y:1@sha256:" + "0" * 64)),
    }
    _maybe(random, container, "resources", _resources, 0.85)
    _maybe(random, container, "command", lambda _: ["sh", "-c", "sleep 1; echo $(A) ä"], 0.2)
    _maybe(random, container, "env", _environment, 0.3)
    _maybe(random, container, "ports", lambda _: [{"containerPort": 8080}], 0.2)
    _maybe(
        random, container, "imagePullPolicy", lambda r: r.choice(("Always", "IfNotPresent")), 0.2
    )
    _maybe(random, container, "tty", lambda r: r.random() < 0.5, 0.1)
    _maybe(random, container, "workingDir", lambda _: "/w", 0.1)
    _maybe(random, container, "terminationMessagePath", lambda _: "/dev/log", 0.05)
    _maybe(random, container, "securityContext", lambda _: {"allowPrivilegeEscalation": False}, 0.2)
    _maybe(random, container, "livenessProbe", lambda _: {"exec": {"command": ["x"]}}, 0.1)
    return container


def _pull_policy(random: Random) -> str:
    return random.choice(("Always", "IfNotPresent", "Never"))


def _inits(random: Random) -> list[Object]:
    found = [_container(random, f"i{n}") for n in range(random.choice((1, 2)))]
    for each in found:
        each.pop("livenessProbe", None)
        if random.random() < 0.3:
            each["restartPolicy"] = "Always"
    return found


def _resources(random: Random) -> Object:
    limits: Object = {}
    requests: Object = {}
    if random.random() < 0.6:
        _device(random, random.choice(DEVICES), limits, requests)
    if random.random() < 0.2:
        _device(random, random.choice(FOREIGN), limits, requests)
    if random.random() < 0.6:
        random.choice((limits, requests))["cpu"] = random.choice(CPUS)
    if random.random() < 0.6:
        random.choice((limits, requests))["memory"] = random.choice(SIZES)
    if random.random() < 0.1:
        requests["ephemeral-storage"] = random.choice(SIZES)
    found = {"limits": limits, "requests": requests}
    for key in ("limits", "requests"):
        if not found[key] and random.random() < 0.7:
            del found[key]
    return found


def _device(random: Random, name: str, limits: Object, requests: Object) -> None:
    count = random.choice((0, 1, 1, 1, 1, 2, 2, 1000, 1024))
    limits[name] = random.choice(COUNTS[count])
    if random.random() < 0.4:  # a different notation of the same number
        requests[name] = random.choice(COUNTS[count])


def _of_the_pod(random: Random) -> Object:
    return {"limits": {"cpu": "64", "memory": "64Gi"}}


def _name(random: Random) -> Object:
    if random.random() < 0.3:
        return {"generateName": _word(random, random.choice((1, 20, 200))) + "-"}
    parts = [_word(random, random.choice((1, 8, 60))) for _ in range(random.choice((1, 1, 2, 4)))]
    return {"name": ".".join(parts)}


def _labels(random: Random) -> Object:
    found: Object = {}
    for _ in range(random.choice((0, 1, 3, 20))):
        key = _word(random, random.choice((1, 10, 63)))
        if random.random() < 0.3:
            key = f"{_word(random, 50)}.example/{key}"
        found[key] = random.choice(("", "x", "A_b.c-9", _word(random, 63)))
    if random.random() < 0.1:
        found["fairgate.io/tenant"] = "rich"
    return found


def _annotations(random: Random) -> Object:
    found: Object = {}
    for _ in range(random.choice((0, 1, 3))):
        found[_word(random, 63)] = random.choice((*UNICODE, "x" * 3000))
    if random.random() < 0.1:
        found["fairgate.io/release"] = random.choice(("7.7", "0", ""))
    if random.random() < 0.1:
        found["fairgate.io/submitter"] = "somebody-else"
    if random.random() < 0.2:
        key = random.choice(
            ("max-runtime", "preemptible", "placement", "topology", "gang", "gang-size")
        )
        found["fairgate.io/" + key] = random.choice((*UNICODE, "2h", "true", "pack", "4"))
    return found


def _environment(random: Random) -> list[Object]:
    reference = {"fieldRef": {"fieldPath": "metadata.name"}}
    return [
        {"name": "A", "value": random.choice(UNICODE).replace("\u0001", "")},
        {"name": "B", "valueFrom": reference},
        {"name": "C"},
    ]


def _selector(random: Random) -> Object:
    return {f"{_word(random, 20)}.example/zone": random.choice(("", "a", "b"))}


def _tolerations(random: Random) -> list[Object]:
    choices: tuple[Object, ...] = (
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
         "tolerationSeconds": random.choice((-1, 0, 300))},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "team", "value": ""},
    )  # fmt: skip
    return random.sample(choices, random.choice((0, 1, 2, 3)))


def _affinity(random: Random) -> Object:
    found: Object = {}
    near = {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "zone"}
    expression = {"key": "zone", "operator": random.choice(("Exists", "DoesNotExist"))}
    if random.random() < 0.5:
        terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    if random.random() < 0.3:
        preferred = [{"weight": random.choice((1, 100)), "podAffinityTerm": near}]
        found["podAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    if random.random() < 0.3:
        found["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [near]}
    return found


def _spread(random: Random) -> list[Object]:
    selector = {"labelSelector": {"matchLabels": {"app": "x"}}}
    when = random.choice(("DoNotSchedule", "ScheduleAnyway"))
    return [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": when, **selector}]


def _gates(random: Random) -> list[Object]:
    return [{"name": f"example.com/{name}"} for name in ("a", "b")[: random.choice((0, 1, 2))]]


def _volumes(random: Random) -> list[Object]:
    choices: tuple[Object, ...] = (
        {"name": "e", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": random.choice(SIZES)}},
        {"name": "c", "configMap": {"name": "x", "optional": True}},
        {"name": "s", "secret": {"secretName": "x", "defaultMode": 0o400}},
        {"name": "d", "downwardAPI": {"items": [
            {"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"name": "n", "persistentVolumeClaim": {"claimName": "x"}},
    )  # fmt: skip
    return random.sample(choices, random.choice((1, 2, 3)))


def _sprinkle_nulls(random: Random, pod: Object) -> None:
    """Write null for fields that the API reference allows to be absent."""
    optional = (
        (pod, "status"),
        (pod["metadata"], "labels"),
        (pod["metadata"], "annotations"),
        (pod["metadata"], "namespace"),
        (pod["metadata"], "creationTimestamp"),
        (pod["metadata"], "ownerReferences"),
        (pod["spec"], "nodeName"),
        (pod["spec"], "nodeSelector"),
        (pod["spec"], "affinity"),
        (pod["spec"], "tolerations"),
        (pod["spec"], "initContainers"),
        (pod["spec"], "schedulingGates"),
        (pod["spec"], "priorityClassName"),
        (pod["spec"], "resourceClaims"),
        (pod["spec"], "overhead"),
    )
    for place, key in optional:
        if key not in place and random.random() < 0.03:
            place[key] = None


def _maybe(
    random: Random, place: Object, key: str, value: Callable[[Random], Any], chance: float = 0.3
) -> None:
    if random.random() < chance:
        place[key] = value(random)


def _word(random: Random, most: int) -> str:
    return "".join(random.choices(ALNUM, k=random.randint(1, most)))
