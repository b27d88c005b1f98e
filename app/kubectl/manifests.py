"""Reads Kubernetes manifests, and finds the pods that their objects will create."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.errors import InvalidInput
from app.core.well_known import ANNOTATION_SUBMITTER
from app.kubectl.client import segment
from app.terminal import object_files
from app.terminal.object_files import Document

REPLICATED_JOB_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"

CLAIM, CLAIM_TEMPLATE = "ResourceClaim", "ResourceClaimTemplate"

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

Claims = Mapping[tuple[str, str, str], Any]
"""Specs of claims by kind, namespace and name of the object that has the spec."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The API group and the name in URLs of a kind that creates pods."""

    group: str
    resource: str


KINDS = {
    "Pod": Kind("", "pods"),
    "Job": Kind("batch", "jobs"),
    "Deployment": Kind("apps", "deployments"),
    "StatefulSet": Kind("apps", "statefulsets"),
    "JobSet": Kind("jobset.x-k8s.io", "jobsets"),
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object of a known kind. `name` is "" if the API server generates it."""

    kind: str
    name: str
    namespace: str
    document: Document

    def __str__(self) -> str:
        name = self.name or f"{self.document['metadata'].get('generateName', '')}*"
        return f"{self.kind} {self.namespace}/{name}"

    @property
    def path(self) -> str:
        """The path of the API server to which the object is posted."""
        kind, version = KINDS[self.kind], self.document["apiVersion"].rpartition("/")[2]
        root = f"/apis/{kind.group}" if kind.group else "/api"
        return f"{root}/{segment(version)}/namespaces/{segment(self.namespace)}/{kind.resource}"


@dataclass(frozen=True, slots=True)
class PodCopies:
    """A pod that an object creates, and the number of equal pods at one time."""

    count: int
    document: Document


def documents(file: str) -> list[Document]:
    """Return the objects of a file; "-" is standard input. Raises InvalidInput."""
    return _required(object_files.read_objects(file))


def parse(text: str) -> list[Document]:
    """Return the objects of YAML documents. Raises InvalidInput."""
    return _required(object_files.parse_objects(text, "The manifest"))


def _required(found: list[Document]) -> list[Document]:
    if not found:
        raise InvalidInput("The manifest has no Kubernetes object; write one as for kubectl.")
    return found


def manifest(document: Document, namespace: str, *, required: bool) -> Manifest | None:
    """Return an object of a known kind; None for other kinds. Raises InvalidInput.

    `namespace`: the namespace of objects without one. `required`: no object may have another.
    """
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        raise InvalidInput("An object of the file has no kind or apiVersion; add both.")
    known = KINDS.get(kind)
    if known is None or (version.rpartition("/")[0] != known.group):
        return None
    meta = _map(document, "metadata")
    if not (meta.get("name") or meta.get("generateName")):
        raise InvalidInput(f"A {kind} of the file has no name; add metadata.name.")
    own = str(meta.get("namespace") or namespace)
    if not _NAMESPACE.fullmatch(own):
        raise InvalidInput(f"{own[:80]!r} is not the name of a namespace; write one, as team-a.")
    if required and own != namespace:
        raise InvalidInput(
            f"A {kind} of the file is in namespace {own}, and -n names {namespace}; leave out one."
        )
    return Manifest(kind, str(meta.get("name") or ""), own, {**document, "metadata": meta})


def written_claims(documents: Sequence[Document], namespace: str) -> Claims:
    """Return the claims, and claims of templates, in a file."""
    found = {}
    for each in documents:
        kind, meta, spec = each.get("kind"), _map(each, "metadata"), _map(each, "spec")
        if kind in (CLAIM, CLAIM_TEMPLATE):
            own = str(meta.get("namespace") or namespace)
            found[kind, own, str(meta.get("name"))] = spec if kind == CLAIM else _map(spec, "spec")
    return found


def pods(found: Manifest, stored: Document) -> list[PodCopies]:
    """Return the pods that an object creates. `stored`: the object as the API server answered."""
    spec = _map(stored, "spec")
    match found.kind:
        case "Pod":
            return [PodCopies(1, stored)]
        case "Job":
            return [_of_job(spec, 1, found)]
        case "JobSet":
            return [_of_replicated_job(each, found) for each in spec.get("replicatedJobs") or ()]
    copies = _copies(_number(spec, "replicas"), spec, found)
    claims = [_map(each, "metadata").get("name") for each in spec.get("volumeClaimTemplates") or ()]
    return [_with_volumes(copies, claims)] if claims else [copies]


def starts_in_order(stored: Document) -> bool:
    """Return whether a JobSet starts its replicated jobs one after another."""
    spec = _map(stored, "spec")
    jobs = spec.get("replicatedJobs") or ()
    in_order = _map(spec, "startupPolicy").get("startupPolicyOrder") == "InOrder"
    return in_order or any(each.get("dependsOn") for each in jobs)


def _of_replicated_job(job: Document, found: Manifest) -> PodCopies:
    """Return the pods of a replicated job, with the label that the JobSet controller writes."""
    copies = _of_job(_map(_map(job, "template"), "spec"), _number(job, "replicas"), found)
    meta = _map(copies.document, "metadata")
    labels = {**meta["labels"], REPLICATED_JOB_LABEL: str(job.get("name", ""))}
    return replace(copies, document={**copies.document, "metadata": {**meta, "labels": labels}})


def _of_job(spec: Document, times: int, found: Manifest) -> PodCopies:
    parallel = _number(spec, "parallelism")
    completions = spec.get("completions")
    if isinstance(completions, int):
        parallel = min(parallel, completions)
    return _copies(times * parallel, spec, found)


def _copies(count: int, spec: Document, found: Manifest) -> PodCopies:
    template = _map(spec, "template")
    meta = _map(template, "metadata")
    annotations = {k: v for k, v in _map(meta, "annotations").items() if k != ANNOTATION_SUBMITTER}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{found.name or 'try'}-"[:200],
            "namespace": found.namespace,
            "labels": _map(meta, "labels"),
            "annotations": annotations,
        },
        "spec": _map(template, "spec"),
    }
    return PodCopies(count, pod)


def _with_volumes(copies: PodCopies, claims: list[Any]) -> PodCopies:
    """Return pods with the volumes that a StatefulSet adds for its claim templates."""
    spec = _map(copies.document, "spec")
    volumes = [*(spec.get("volumes") or ())]
    volumes += [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return PodCopies(copies.count, {**copies.document, "spec": {**spec, "volumes": volumes}})


def _map(document: Document, key: str) -> dict[str, Any]:
    found = document.get(key)
    return dict(found) if isinstance(found, dict) else {}


def _number(document: Document, key: str) -> int:
    """Return a number of pods; 1 if absent."""
    found = document.get(key)
    return found if isinstance(found, int) and found >= 0 else 1
