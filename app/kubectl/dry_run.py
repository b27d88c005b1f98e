"""`try`: tests the objects of a manifest in a cluster without creating them.

Each object, and a pod of each of its templates, passes the admission chain with `dryRun=All`.
Fairgate then simulates the pods. Both requests have the caller's own rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.kubectl.client import ApiAnswer, ApiClient
from app.kubectl.manifests import KINDS, Manifest, PodCopies, manifest, pods

UNAUTHORIZED, FORBIDDEN, CONFLICT, INVALID, TOO_MANY = 401, 403, 409, 422, 429

NO_RIGHT = "cannot create resource"
"""Part of the API server's message if RBAC forbids a create. Admission messages lack it."""

Result = dict[str, Any]


def evaluate(door: ApiClient, namespace: str | None, objects: Iterable[Any]) -> Result:
    """Return the result for each object: see `_evaluate`. Raises InvalidInput, ClusterError."""
    if not door.aggregated:
        raise InvalidInput(
            "A dry run needs the API server, which --server leaves out; use a kubeconfig."
        )
    space = namespace or door.namespace
    found = [manifest(each, space) for each in objects]
    known = [each for each in found if each is not None]
    if not known:
        raise InvalidInput(f"The file has no object of a known kind: {', '.join(KINDS)}.")
    return {"skipped": len(found) - len(known), "items": [_evaluate(door, each) for each in known]}


def compare(
    open_context: Callable[[str], ApiClient],
    names: Iterable[str],
    namespace: str | None,
    objects: list[Any],
) -> Result:
    """Return the results of several contexts. A context that fails has an `error`."""
    items: list[Result] = []
    for name in names:
        try:
            found = evaluate(open_context(name), namespace, objects)["items"]
        except (ClusterRefused, ClusterUnavailable) as error:
            found = [{"object": "", "accepted": None, "trial": None, "error": str(error)}]
        items += [{"context": name, **each} for each in found]
    return {"items": items}


def is_accepted(items: Iterable[Result]) -> bool:
    """Return whether a cluster accepts every object."""
    return all(each["accepted"] for each in items)


def _evaluate(door: ApiClient, found: Manifest) -> Result:
    """Return whether the API server accepts an object and its pods, and Fairgate's simulation."""
    notes: list[str] = []
    result: Result = {"object": str(found), "accepted": True, "refusal": None, "notes": notes}
    trial = None
    try:
        answer = _create(door, found.path, found.document, notes)
        made = [each for each in pods(found, answer.read()) if each.count]
        if found.kind != "Pod":
            made = [_pod(door, found, each, notes) for each in made]
        trial = _trial(door, found, made, notes)
    except _Refusal as refusal:
        result |= {"accepted": False, "refusal": str(refusal)}
    return {**result, "notes": list(dict.fromkeys(notes)), "trial": trial}


class _Refusal(Exception):
    """The API server refuses an object or its pods. The message is the API server's."""


def _pod(door: ApiClient, found: Manifest, copies: PodCopies, notes: list[str]) -> PodCopies:
    """Return pods as the API server would store them."""
    path = f"/api/v1/namespaces/{found.namespace}/pods"
    try:
        # Its warnings are left out: a pod without its controller gets others than its template.
        answer = _create(door, path, copies.document, [])
    except _Refusal as refusal:
        if NO_RIGHT not in str(refusal):
            raise _Refusal(f"its pods would be refused: {refusal}") from refusal
        notes.append("You may not create pods, so the admission of its pods was not tested.")
        return copies
    return PodCopies(copies.count, answer.read())


def _create(door: ApiClient, path: str, document: Mapping[str, Any], notes: list[str]) -> ApiAnswer:
    """Create an object as a dry run. If its name exists, create it under a generated name."""
    try:
        answer = door.dry_run(path, document)
    except ClusterRefused as error:
        name = document["metadata"].get("name")
        if error.status != CONFLICT or not name:
            raise _refusal(error) from error
        notes.append("An object of this name exists. A new object with another name was tested.")
        meta = {k: v for k, v in document["metadata"].items() if k != "name"}
        return _create(
            door, path, {**document, "metadata": {**meta, "generateName": f"{name}-"}}, notes
        )
    notes += answer.warnings
    return answer


def _refusal(error: ClusterRefused) -> Exception:
    return error if error.status in (UNAUTHORIZED, TOO_MANY) else _Refusal(str(error))


def _trial(door: ApiClient, found: Manifest, made: list[PodCopies], notes: list[str]) -> Any:
    """Return the answer to a simulation of pods; None if it is not possible."""
    if not made:
        notes.append("It creates no pods.")
        return None
    body = {
        "namespace": found.namespace,
        "kind": found.kind,
        "name": found.name,
        "pods": [{"count": each.count, "pod": _relevant(each.document)} for each in made],
    }
    try:
        return door.evaluate("/trials", body).read()
    except ClusterRefused as error:
        if error.status != INVALID:
            raise
        notes.append(str(error))
        return None


def _relevant(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parts of a pod that a simulation reads. Managed fields are long."""
    meta = pod["metadata"]
    return {
        "metadata": {key: meta.get(key) or {} for key in ("labels", "annotations")},
        "spec": pod["spec"],
        "status": {"qosClass": (pod.get("status") or {}).get("qosClass")},
    }
