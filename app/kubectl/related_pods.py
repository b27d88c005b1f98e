"""Pods of a workload object or of labels, and why the held ones wait.

It reads the objects and pods from the API server, with the caller's own rights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.errors import ClusterRefused, InvalidInput
from app.core.well_known import ANNOTATION_RELEASE, GATE
from app.kubectl.client import ApiAnswer, ApiClient, segment
from app.kubectl.options import NamespaceScope

MOST_ASKED = 30
"""Limit on requests for reasons. The pods of one object mostly share a reason."""

INVALID, FORBIDDEN, NOT_FOUND = 400, 403, 404

ALL_PODS = "/api/v1/pods"

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"

_GROUPS = {"job": "batch", "deployment": "apps", "statefulset": "apps"}
"""API groups by kind. The `spec.selector` of these kinds finds their pods."""

_SHORT = {"deploy": "deployment", "sts": "statefulset"}


@dataclass(frozen=True, slots=True)
class PodSource:
    """An object of a kind, or a label selector (then `kind` is empty)."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}" if self.kind else f"-l {self.name}"


def source(text: str) -> PodSource | None:
    """Return the object that KIND/NAME names; None for a pod. Raises InvalidInput."""
    kind, slash, name = text.partition("/")
    singular = _SHORT.get(kind, kind.removesuffix("s"))
    if not slash or singular in ("po", "pod"):
        return None
    if name and (singular in _GROUPS or singular == "jobset"):
        return PodSource(singular, name)
    known = ", ".join(["pod", "jobset", *_GROUPS])
    raise InvalidInput(f"{text[:80]} is of no known kind; write KIND/NAME with one of {known}.")


PodFilter = Callable[[Mapping[str, Any]], bool]
"""Tests a workload of the API by its namespace and name."""


def pod_filter(client: ApiClient, scope: NamespaceScope) -> PodFilter | None:
    """Return the filter of namespace and labels; None if every pod passes.

    Labels are looked up now, in the API server. A gang passes if its first pod has the labels.
    """
    if scope.selector is None:
        space = scope.only_namespace(None)
        return None if space is None else lambda item: bool(item["namespace"] == space)
    source = PodSource("", scope.selector)
    pods, _ = _pods(client, scope.only_namespace(client.namespace), source)
    names = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in pods}
    return lambda item: (item["namespace"], item["name"]) in names


def summary(client: ApiClient, namespace: str | None, source: PodSource) -> tuple[Any, ApiAnswer]:
    """Return counts of the pods, and the first held pod of each distinct rule.

    `namespace` None: all namespaces. `notAsked`: the number of held pods without a known reason.
    """
    pods, read = _pods(client, namespace, source)
    states = Counter(map(_state, pods))
    held = [each["metadata"] for each in pods if _state(each) == "held"]
    items, mates, answer = _reasons(client, held[:MOST_ASKED])
    found = {
        "namespace": namespace,
        "source": str(source),
        **{state: states[state] for state in ("held", "released", "finished", "unmanaged")},
        "items": items,
        "notAsked": max(0, len(held) - MOST_ASKED - mates),
    }
    return found, answer or read


def _pods(
    client: ApiClient, namespace: str | None, source: PodSource
) -> tuple[list[Any], ApiAnswer]:
    """Return the pods of an object or of labels, and the last answer of the API server."""
    if not client.aggregated:
        raise InvalidInput(
            "Pods are looked up in the API server, which --server leaves out; name one pod, or "
            "use a kubeconfig."
        )
    query = [("labelSelector", _selector(client, namespace or "", source)), ("limit", "500")]
    path = ALL_PODS if namespace is None else f"/api/v1/namespaces/{segment(namespace)}/pods"
    pods: list[Any] = []
    token = ""
    while True:
        asked = [*query, ("continue", token)] if token else query
        read = _read(client, path, asked, source, namespace)
        page = read.as_object()
        pods += page["items"]
        token = page["metadata"].get("continue") or ""
        if not token:
            return pods, read


def _selector(client: ApiClient, namespace: str, source: PodSource) -> str:
    if not source.kind:
        return source.name
    if source.kind == "jobset":
        return f"{JOBSET_LABEL}={source.name}"
    root = f"/apis/{_GROUPS[source.kind]}/v1/namespaces/{segment(namespace)}/{source.kind}s"
    read = _read(client, f"{root}/{segment(source.name)}", (), source, namespace).as_object()
    selector = read["spec"]["selector"]
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], ",".join(each.get("values") or ())
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[each["operator"]]
        )
    return ",".join(parts)


def _read(
    client: ApiClient, path: str, query: Any, source: PodSource, namespace: str | None
) -> ApiAnswer:
    try:
        return client.get_kubernetes(path, query)
    except ClusterRefused as error:
        if error.status == NOT_FOUND:
            sentence = (
                f"There is no {source}; see whether the name and the namespace (-n) are right."
            )
        elif error.status == FORBIDDEN:
            need = (
                f"the right to {'get it and to ' if source.kind else ''}list pods in namespace "
                f"{namespace}; for another namespace, add -n NAMESPACE"
            )
            if path == ALL_PODS:
                need = "the right to list pods of all namespaces; or name one by -n"
            sentence = f"You may not read the pods of {source}: you need {need}."
        elif error.status == INVALID and not source.kind:
            sentence = f"{source} is not a label selector such as app=train ({error})."
        else:
            raise
        raise ClusterRefused(sentence, error.status) from error


def _state(pod: Mapping[str, Any]) -> str:
    if pod["status"].get("phase") in ("Succeeded", "Failed"):
        return "finished"
    if any(each["name"] == GATE for each in pod["spec"].get("schedulingGates") or ()):
        return "held"
    return (
        "released"
        if ANNOTATION_RELEASE in (pod["metadata"].get("annotations") or {})
        else "unmanaged"
    )


def _reasons(
    client: ApiClient, held: Sequence[Mapping[str, Any]]
) -> tuple[list[Any], int, ApiAnswer | None]:
    """Return the first workload of each rule, and the number of further pods of their gangs.

    `held`: metadata of held pods.
    """
    found: dict[str, Any] = {}
    mates: dict[tuple[str, str], int] = {}
    last = None
    for meta in held:
        try:
            last = client.get(f"/workloads/{segment(meta['namespace'])}/{segment(meta['name'])}")
        except ClusterRefused as error:
            if error.status != NOT_FOUND:
                raise
            continue  # released or deleted a moment ago
        item = last.as_object()
        if item["state"] == "held":
            found.setdefault(item["rule"], item)
            gang = item["namespace"], item["gang"] or item["name"]
            mates[gang] = mates.get(gang, item["pods"]) - 1
    return list(found.values()), sum(mates.values()), last
