"""Pods of any size in one field: raw Kubernetes JSON that the API server accepts.

`FIELDS` maps the name of a field to a function of the number of entries and a salt. Equal salts
give equal entries, different salts give disjoint entries. `fitting` returns the largest pod of a
field that etcd stores.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from app.core.events import WatchedSource

Object = dict[str, Any]
Build = Callable[[int, str], Object]

MOST_BYTES = 1_400_000
"""etcd refuses requests of more than 1.5 MiB; the API server adds managed fields and defaults."""

MOST_ANNOTATIONS = 256 * 1024
GPU = "nvidia.com/gpu"


def pod(name: str = "large", **spec: Any) -> Object:
    """Return a pod with one GPU."""
    limits = {"cpu": "1", GPU: "1"}
    main = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [main], **spec},
    }


def _required(terms: list[Object]) -> Object:
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def _expression(key: str, operator: str, *values: str) -> Object:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def selector_keys(count: int, salt: str) -> Object:
    return pod(nodeSelector={f"k{salt}-{i}": "v" for i in range(count)})


def affinity_terms(count: int, salt: str) -> Object:
    """Terms that every node meets: the pod may use any node."""
    each = [_expression(f"k{salt}-{i}", "DoesNotExist") for i in range(count)]
    return pod(affinity=_required([{"matchExpressions": [one]} for one in each]))


def affinity_expressions(count: int, salt: str) -> Object:
    each = [_expression(f"k{salt}-{i}", "DoesNotExist") for i in range(count)]
    return pod(affinity=_required([{"matchExpressions": each}]))


def affinity_values(count: int, salt: str) -> Object:
    values = [f"v{salt}-{i}" for i in range(count)]
    each = _expression("kubernetes.io/hostname", "NotIn", *values)
    return pod(affinity=_required([{"matchExpressions": [each]}]))


def affinity_numbers(count: int, salt: str) -> Object:
    """Numeric comparisons with a label that all nodes may have."""
    each = [_expression("number", "Gt", f"-{int(salt or 0) + i}") for i in range(count)]
    return pod(affinity=_required([{"matchExpressions": [one]} for one in each]))


def affinity_fields(count: int, salt: str) -> Object:
    each = [_expression("metadata.name", "NotIn", f"n{salt}-{i}") for i in range(count)]
    return pod(affinity=_required([{"matchFields": [one]} for one in each]))


def preferred_terms(count: int, salt: str) -> Object:
    terms = [
        {"weight": 1, "preference": {"matchExpressions": [_expression(f"k{salt}-{i}", "Exists")]}}
        for i in range(count)
    ]
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": terms}
    return pod(affinity={"nodeAffinity": preferred})


def tolerations(count: int, salt: str) -> Object:
    each = [{"key": f"k{salt}-{i}", "operator": "Exists"} for i in range(count)]
    return pod(tolerations=each)


def _labelled(built: Object, labels: Object) -> Object:
    built["metadata"]["labels"] = labels
    return built


def _distance(kind: str, terms: list[Object]) -> Object:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    return _labelled(pod(affinity={kind: rule}), {"app": "large"})


def anti_affinity_terms(count: int, salt: str) -> Object:
    selector = {"matchLabels": {"app": "large"}}
    return _distance(
        "podAntiAffinity",
        [{"topologyKey": f"k{salt}-{i}", "labelSelector": selector} for i in range(count)],
    )


def anti_affinity_expressions(count: int, salt: str) -> Object:
    each = [_expression(f"k{salt}-{i}", "DoesNotExist") for i in range(count)]
    selector = {"matchExpressions": each}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return _distance("podAntiAffinity", [term])


def anti_affinity_values(count: int, salt: str) -> Object:
    values = ["large", *(f"v{salt}-{i}" for i in range(count))]
    selector = {"matchExpressions": [_expression("app", "In", *values)]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return _distance("podAntiAffinity", [term])


def anti_affinity_namespaces(count: int, salt: str) -> Object:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "large"}},
        "namespaces": [f"n{salt}-{i}" for i in range(count)],
    }
    return _distance("podAntiAffinity", [term])


def anti_affinity_label_keys(count: int, salt: str) -> Object:
    keys = [f"k{salt}-{i}" for i in range(count)]
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "large"}},
        "matchLabelKeys": keys,
    }
    return _labelled(_distance("podAntiAffinity", [term]), dict.fromkeys(["app", *keys], "large"))


def spread_constraints(count: int, salt: str) -> Object:
    selector = {"matchLabels": {"app": "large"}}
    each = [
        {
            "maxSkew": 1,
            "topologyKey": f"k{salt}-{i}",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": selector,
        }
        for i in range(count)
    ]
    return _labelled(pod(topologySpreadConstraints=each), {"app": "large"})


def resource_names(count: int, salt: str) -> Object:
    built = pod()
    asked = {f"example.com/r{salt}-{i}": "1" for i in range(count)}
    resources = built["spec"]["containers"][0]["resources"]
    resources["limits"] = {**resources["limits"], **asked}
    resources["requests"] = dict(resources["limits"])
    return built


def containers(count: int, salt: str) -> Object:
    built = pod()
    built["spec"]["containers"] += [{"name": f"c{salt}-{i}", "image": "none"} for i in range(count)]
    return built


def sidecars(count: int, salt: str) -> Object:
    """Each sidecar requests another resource, and all run at once."""
    each = [
        {
            "name": f"c{salt}-{i}",
            "image": "none",
            "restartPolicy": "Always",
            "resources": {
                "limits": {f"example.com/r{salt}-{i}": "1"},
                "requests": {f"example.com/r{salt}-{i}": "1"},
            },
        }
        for i in range(count)
    ]
    return pod(initContainers=each)


def resource_claims(count: int, salt: str) -> Object:
    each = [{"name": f"c{salt}-{i}", "resourceClaimName": f"c{salt}-{i}"} for i in range(count)]
    return pod(resourceClaims=each)


def gates(count: int, salt: str) -> Object:
    return pod(schedulingGates=[{"name": f"example.com/g{salt}-{i}"} for i in range(count)])


def labels(count: int, salt: str) -> Object:
    return _labelled(pod(), {f"k{salt}-{i}": "v" for i in range(count)})


def pod_annotations(count: int, salt: str) -> Object:
    built = pod()
    built["metadata"]["annotations"] = {f"k{salt}-{i}": "v" for i in range(count)}
    return built


def pool_names(count: int, salt: str) -> Object:
    built = pod()
    named = ",".join(f"p{salt}-{i}" for i in range(count))
    built["metadata"]["annotations"] = {"fairgate.io/pools": named}
    return built


def owners(count: int, salt: str) -> Object:
    built = pod()
    built["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": f"o{salt}-{i}", "uid": f"u{salt}-{i}"}
        for i in range(count)
    ]
    return built


def owner_name(count: int, salt: str) -> Object:
    """The name of one controller, of `count` characters."""
    built = pod()
    built["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": f"o{salt}".ljust(count, "x"),
            "uid": f"u{salt}",
            "controller": True,
        }
    ]
    return built


def finalizers(count: int, salt: str) -> Object:
    built = pod()
    built["metadata"]["finalizers"] = [f"example.com/f{salt}-{i}" for i in range(count)]
    return built


def volumes(count: int, salt: str) -> Object:
    return pod(volumes=[{"name": f"v{salt}-{i}", "emptyDir": {}} for i in range(count)])


def variables(count: int, salt: str) -> Object:
    built = pod()
    each = [{"name": f"V{salt}_{i}", "value": "x"} for i in range(count)]
    built["spec"]["containers"][0]["env"] = each
    return built


FIELDS: dict[str, Build] = {
    "nodeSelector": selector_keys,
    "node affinity terms": affinity_terms,
    "node affinity expressions": affinity_expressions,
    "node affinity values": affinity_values,
    "node affinity numbers": affinity_numbers,
    "node affinity fields": affinity_fields,
    "preferred node affinity": preferred_terms,
    "tolerations": tolerations,
    "pod anti-affinity terms": anti_affinity_terms,
    "pod anti-affinity expressions": anti_affinity_expressions,
    "pod anti-affinity values": anti_affinity_values,
    "pod anti-affinity namespaces": anti_affinity_namespaces,
    "pod anti-affinity label keys": anti_affinity_label_keys,
    "topology spread": spread_constraints,
    "resource names": resource_names,
    "containers": containers,
    "sidecars": sidecars,
    "resource claims": resource_claims,
    "scheduling gates": gates,
    "labels": labels,
    "annotations": pod_annotations,
    "pool names": pool_names,
    "owner references": owners,
    "owner name": owner_name,
    "finalizers": finalizers,
    "volumes": volumes,
    "variables": variables,
}


def fitting(field: str, salt: str = "") -> Object:
    """Return about the largest pod of one field that the API server and etcd accept."""
    build = FIELDS[field]
    annotated = field in ("annotations", "pool names")
    most = MOST_ANNOTATIONS if annotated else MOST_BYTES
    few, many = 1000, 2000
    each = (_size(build(many, salt)) - _size(build(few, salt))) / (many - few)
    count = int(most * 0.85 / each)
    while _size(build(count, salt)) > most:
        count = count * 9 // 10
    return build(count, salt)


def _size(found: Object) -> int:
    return len(json.dumps(found, separators=(",", ":")))


def _object(kind: str, name: str, **fields: Any) -> Object:
    return {"kind": kind, "metadata": {"name": name, "namespace": "default"}, **fields}


def _with_labels(found: Object, count: int, salt: str) -> Object:
    found["metadata"]["labels"] = {f"k{salt}-{i}": "v" for i in range(count)}
    return found


def _with_annotations(found: Object, count: int, salt: str) -> Object:
    found["metadata"]["annotations"] = {f"k{salt}-{i}": "v" for i in range(count)}
    return found


def _with_owners(found: Object, count: int, salt: str) -> Object:
    found["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": f"o{salt}-{i}", "uid": f"u{salt}-{i}"}
        for i in range(count)
    ]
    return found


def job(count: int, salt: str) -> Object:
    """A Job that forms a gang, with `count` containers."""
    template = containers(count, salt)
    template["metadata"] = {"annotations": {"fairgate.io/gang": "job"}}
    return _object("Job", f"j{salt}", spec={"parallelism": 4, "template": template})


def job_set(count: int, salt: str) -> Object:
    """A JobSet with `count` replicated jobs."""
    each = {"replicas": 1, "template": {"spec": job(1, salt)["spec"]}}
    return _object("JobSet", f"s{salt}", spec={"replicatedJobs": [each] * count})


def pod_group(count: int, salt: str) -> Object:
    return _with_annotations(_object("PodGroup", f"g{salt}", spec={"minMember": 2}), count, salt)


def _claim(salt: str, requests: int = 1) -> Object:
    each = [
        {"name": f"r{i}", "exactly": {"deviceClassName": f"c{salt}-{i}", "count": 1}}
        for i in range(requests)
    ]
    return _object("ResourceClaim", f"c{salt}", spec={"devices": {"requests": each}})


def claim_requests(count: int, salt: str) -> Object:
    return _claim(salt, count)


def claim_owners(count: int, salt: str) -> Object:
    return _with_owners(_claim(salt), count, salt)


def claim_labels(count: int, salt: str) -> Object:
    return _with_labels(_claim(salt), count, salt)


def device_class(count: int, salt: str) -> Object:
    selectors = [{"cel": {"expression": f"device.driver == 'd{i}'"}} for i in range(count)]
    spec = {"selectors": selectors, "extendedResourceName": f"example.com/r{salt}"}
    return _object("DeviceClass", f"d{salt}", spec=spec)


def _node(salt: str) -> Object:
    offer = {"cpu": "8", "pods": "110", GPU: "8"}
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": offer}
    return _object("Node", f"n{salt}", spec={}, status=ready)


def node_labels(count: int, salt: str) -> Object:
    return _with_labels(_node(salt), count, salt)


def node_annotations(count: int, salt: str) -> Object:
    return _with_annotations(_node(salt), count, salt)


def node_taints(count: int, salt: str) -> Object:
    found = _node(salt)
    found["spec"]["taints"] = [
        {"key": f"k{salt}-{i}", "effect": "NoSchedule"} for i in range(count)
    ]
    return found


def node_resources(count: int, salt: str) -> Object:
    found = _node(salt)
    found["status"]["allocatable"] |= {f"example.com/r{salt}-{i}": "1" for i in range(count)}
    return found


def _tenant(salt: str, **spec: Any) -> Object:
    found = _object("Tenant", f"t{salt}", spec={"weight": "2", **spec})
    del found["metadata"]["namespace"]
    return found


def tenant_users(count: int, salt: str) -> Object:
    """The names are as long as the schema allows."""
    users = [{"name": f"u{salt}-{i}-".ljust(512, "x"), "weight": f"{i + 1}"} for i in range(count)]
    return _tenant(salt, users=users)


def tenant_namespaces(count: int, salt: str) -> Object:
    return _tenant(salt, namespaces=[f"n{salt}-{i}" for i in range(count)])


def tenant_pools(count: int, salt: str) -> Object:
    return _tenant(salt, pools=[f"p{salt}-{i}" for i in range(count)])


def tenant_quotas(count: int, salt: str) -> Object:
    return _tenant(
        salt,
        quotas=[{"pool": f"p{salt}-{i}", "guarantee": {GPU: "1"}} for i in range(count)],
    )


def pool_tolerations(count: int, salt: str) -> Object:
    each = [{"key": f"k{salt}-{i}", "operator": "Exists"} for i in range(count)]
    found = _object("Pool", f"p{salt}", spec={"nodeSelector": {"none": salt}, "tolerations": each})
    del found["metadata"]["namespace"]
    return found


def slice_devices(count: int, salt: str) -> Object:
    attributes = {f"a{i}": {"string": f"v{salt}-{i}"} for i in range(24)}
    capacity = {f"c{i}": {"value": "80Gi"} for i in range(8)}
    devices: list[Object] = [
        {
            "name": f"d{i}",
            "attributes": {**attributes, "uuid": {"string": f"{salt}-{i}"}},
            "capacity": capacity,
            "taints": [{"key": f"t{n}", "effect": "NoSchedule"} for n in range(4)],
        }
        for i in range(count)
    ]
    return _slice({"nodeName": "own", "devices": devices})


def slice_counters(count: int, salt: str) -> Object:
    counters = {f"m{i}": {"value": "1"} for i in range(32)}
    uses = [{"counterSet": f"s{salt}", "counters": counters}]
    devices = [{"name": f"d{i}", "consumesCounters": uses} for i in range(count)]
    sets = [{"name": f"s{salt}", "counters": counters}]
    return _slice({"nodeName": "own", "devices": devices, "sharedCounters": sets})


def slice_selector(count: int, salt: str) -> Object:
    values = [f"v{salt}-{i}" for i in range(count)]
    term = {"matchExpressions": [_expression("k", "NotIn", *values)]}
    devices = [{"name": f"d{i}"} for i in range(128)]
    return _slice({"nodeSelector": {"nodeSelectorTerms": [term]}, "devices": devices})


def _slice(spec: Object) -> Object:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": "own"}, "spec": {"driver": "gpu.test", "pool": pool, **spec}}


OTHERS: dict[str, tuple[WatchedSource, Build, int]] = {
    "Job containers": (WatchedSource.JOBS, job, 2000),
    "JobSet replicated jobs": (WatchedSource.JOB_SETS, job_set, 2000),
    "PodGroup annotations": (WatchedSource.POD_GROUPS, pod_group, 2000),
    "ResourceClaim requests": (WatchedSource.CLAIMS, claim_requests, 32),
    "ResourceClaim owners": (WatchedSource.CLAIMS, claim_owners, 2000),
    "ResourceClaim labels": (WatchedSource.CLAIMS, claim_labels, 2000),
    "DeviceClass selectors": (WatchedSource.CLASSES, device_class, 32),
    "ResourceSlice devices": (WatchedSource.SLICES, slice_devices, 128),
    "ResourceSlice counters": (WatchedSource.SLICES, slice_counters, 64),
    "ResourceSlice selector": (WatchedSource.SLICES, slice_selector, 2000),
    "Node labels": (WatchedSource.NODES, node_labels, 2000),
    "Node annotations": (WatchedSource.NODES, node_annotations, 2000),
    "Node taints": (WatchedSource.NODES, node_taints, 2000),
    "Node resources": (WatchedSource.NODES, node_resources, 2000),
    "Tenant users": (WatchedSource.TENANTS, tenant_users, 1000),
    "Tenant namespaces": (WatchedSource.TENANTS, tenant_namespaces, 500),
    "Tenant pools": (WatchedSource.TENANTS, tenant_pools, 64),
    "Tenant quotas": (WatchedSource.TENANTS, tenant_quotas, 32),
    "Pool tolerations": (WatchedSource.POOLS, pool_tolerations, 32),
}
"""Objects other than pods: the source that reads one, and the most entries that a test gives it.

Up to 128 entries, and in Tenants, the number is the bound of the API or of the schema.
"""
