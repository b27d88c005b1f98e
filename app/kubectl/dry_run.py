"""`try`: tests the objects of a manifest in a cluster without creating them.

Each object, and a pod of each of its templates, passes the admission chain with `dryRun=All`.
Fairgate then simulates the pods. Both requests have the caller's own rights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.kubectl.client import ApiAnswer, ApiClient, segment
from app.kubectl.manifests import (
    CLAIM,
    CLAIM_TEMPLATE,
    KINDS,
    Claims,
    Manifest,
    PodCopies,
    manifest,
    pods,
    starts_in_order,
    written_claims,
)

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, INVALID, TOO_MANY = 401, 403, 404, 409, 422, 429

NO_RIGHT = "cannot create resource"
"""Part of the API server's message if RBAC forbids a create. Admission messages lack it."""

Result = dict[str, Any]


def evaluate(client: ApiClient, namespace: str | None, objects: Sequence[Any]) -> Result:
    """Return the result for each object: see `_evaluate`. Raises InvalidInput, ClusterError."""
    if not client.aggregated:
        raise InvalidInput(
            "A dry run needs the API server, which --server leaves out; use a kubeconfig."
        )
    space = namespace or client.namespace
    found = [manifest(each, space, required=namespace is not None) for each in objects]
    known = [each for each in found if each is not None]
    if not known:
        raise InvalidInput(f"The file has no object of a known kind: {', '.join(KINDS)}.")
    claims = written_claims(objects, space)
    items = [_evaluate(client, each, claims) for each in known]
    return {"skipped": len(found) - len(known), "items": items}


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


def _evaluate(client: ApiClient, found: Manifest, claims: Claims) -> Result:
    """Return whether the API server accepts an object and its pods, and Fairgate's simulation."""
    notes: list[str] = []
    result: Result = {"object": str(found), "accepted": True, "refusal": None, "notes": notes}
    trial = None
    try:
        answer = _create(client, found.path, found.document, notes)
        stored = answer.as_object()
        made = [each for each in pods(found, stored) if each.count]
        if found.kind != "Pod":
            made = [_pod(client, found, each, notes) for each in made]
        in_order = found.kind == "JobSet" and starts_in_order(stored)
        parts = [_part(client, found.namespace, each, claims, notes) for each in made]
        trial = _trial(client, found, parts, notes, in_order=in_order)
    except _Refusal as refusal:
        result |= {"accepted": False, "refusal": str(refusal)}
    return {**result, "notes": list(dict.fromkeys(notes)), "trial": trial}


class _Refusal(Exception):
    """The API server refuses an object or its pods. The message is the API server's."""


def _pod(client: ApiClient, found: Manifest, copies: PodCopies, notes: list[str]) -> PodCopies:
    """Return pods as the API server would store them."""
    path = f"/api/v1/namespaces/{segment(found.namespace)}/pods"
    try:
        # Its warnings are left out: a pod without its controller gets others than its template.
        answer = _create(client, path, copies.document, [])
    except _Refusal as refusal:
        if NO_RIGHT not in str(refusal):
            raise _Refusal(f"its pods would be refused: {refusal}") from refusal
        notes.append("You may not create pods, so the admission of its pods was not tested.")
        return copies
    return PodCopies(copies.count, answer.as_object())


def _create(
    client: ApiClient, path: str, document: Mapping[str, Any], notes: list[str]
) -> ApiAnswer:
    """Create an object as a dry run. If its name exists, create it under a generated name."""
    try:
        answer = client.dry_run(path, document)
    except ClusterRefused as error:
        name = document["metadata"].get("name")
        if error.status != CONFLICT or not name:
            raise _refusal(error) from error
        notes.append("An object of this name exists. A new object with another name was tested.")
        meta = {k: v for k, v in document["metadata"].items() if k != "name"}
        return _create(
            client, path, {**document, "metadata": {**meta, "generateName": f"{name}-"}}, notes
        )
    notes += answer.warnings
    return answer


def _refusal(error: ClusterRefused) -> Exception:
    return error if error.status in (UNAUTHORIZED, TOO_MANY) else _Refusal(str(error))


def _trial(
    client: ApiClient, found: Manifest, parts: list[Result], notes: list[str], *, in_order: bool
) -> Any:
    """Return the answer to a simulation of pods; None if it is not possible."""
    if not parts:
        notes.append("It creates no pods.")
        return None
    body = {
        "namespace": found.namespace,
        "kind": found.kind,
        "name": found.name,
        "pods": parts,
        **({"inOrder": True} if in_order else {}),  # a server of an earlier version lacks it
    }
    try:
        return client.post_query("/trials", body).as_object()
    except ClusterRefused as error:
        if error.status != INVALID:
            raise
        notes.append(str(error))
        return None


def _part(
    client: ApiClient, namespace: str, copies: PodCopies, claims: Claims, notes: list[str]
) -> Result:
    """Return pods of a trial, with the specs of their claims that do not exist yet."""
    specs: Result = {}
    unread: list[Any] = []
    for entry in copies.document["spec"].get("resourceClaims") or ():
        template, name = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        kind, named = (CLAIM_TEMPLATE, template) if template else (CLAIM, name)
        spec = claims.get((kind, namespace, named))
        if template and spec is None:
            spec = _template(client, namespace, template)
            if spec is None:
                unread.append(entry)
                notes.append(
                    f"You may not read ResourceClaimTemplate {template}, so its "
                    "devices are not counted."
                )
        if spec is not None:
            specs[entry["name"]] = spec
    part = {"count": copies.count, "pod": _relevant(copies.document, unread)}
    return {**part, "claims": specs} if specs else part


def _template(client: ApiClient, namespace: str, name: str) -> Any:
    """Return the spec of a claim from a template in the cluster; None without the right."""
    root = f"/apis/resource.k8s.io/v1/namespaces/{segment(namespace)}/resourceclaimtemplates"
    try:
        return client.get_kubernetes(f"{root}/{segment(name)}").as_object()["spec"]["spec"]
    except ClusterRefused as error:
        if error.status == FORBIDDEN:
            return None
        if error.status != NOT_FOUND:
            raise _refusal(error) from error
        raise _Refusal(
            f"there is no ResourceClaimTemplate {namespace}/{name}; add it to the file."
        ) from error


def _relevant(pod: Mapping[str, Any], unread: Sequence[Any]) -> Mapping[str, Any]:
    """Return the parts of a pod that a simulation reads, without claims that were not read."""
    meta, spec = pod["metadata"], pod["spec"]
    if unread:
        spec = {**spec, "resourceClaims": [c for c in spec["resourceClaims"] if c not in unread]}
    return {
        "metadata": {key: meta.get(key) or {} for key in ("labels", "annotations")},
        "spec": spec,
        "status": {"qosClass": (pod.get("status") or {}).get("qosClass")},
    }
