"""Pod templates inside other objects: where they are, and the stamp that says whose they are.

A stamp is written once, when a person makes the object, and believed on the pods that a
controller makes after the template. Works on JSON as it is; decides nothing about pods.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from app.core.errors import InvalidInput
from app.core.model import ANNOTATION_SUBMITTER, UserName

Patch = list[dict[str, Any]]

_PATH = re.compile(r"[A-Za-z0-9]+(\.[A-Za-z0-9]+)*((\[\*\]|\{\*\})(\.[A-Za-z0-9]+)+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that carries pod templates. `path` as in the chart's `podTemplates`."""

    group: str
    resource: str
    path: str

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise InvalidInput(
                f"{self.path[:80]!r} is no path of a pod template; write keys joined by points, "
                "such as spec.template, with [*] or {*} after at most one of them."
            )

    def find(self, document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return the JSON pointer of every template in an object, and the template."""
        before, star, after = _split(self.path)
        where, found = "", document
        for key in before:
            where, found = f"{where}/{key}", _member(found, key)
        for name, each in _members(found, star):
            pointer = f"{where}{name}"
            for key in after:
                pointer, each = f"{pointer}/{key}", _member(each, key)
            if isinstance(each, dict):
                yield pointer, each


BUILT_IN = (
    Kind("batch", "jobs", "spec.template"),
    Kind("batch", "cronjobs", "spec.jobTemplate.spec.template"),
    Kind("apps", "deployments", "spec.template"),
    Kind("apps", "replicasets", "spec.template"),
    Kind("apps", "statefulsets", "spec.template"),
    Kind("apps", "daemonsets", "spec.template"),
    Kind("apps", "controllerrevisions", "data.spec.template"),
    Kind("", "replicationcontrollers", "spec.template"),
    Kind("jobset.x-k8s.io", "jobsets", "spec.replicatedJobs[*].template.spec.template"),
)


def stamps(kind: Kind, document: Any) -> list[str]:
    """Return the stamp of every template in an object, "" where there is none."""
    return [stamp_of(template) for _, template in kind.find(document)]


def stamp_of(template: dict[str, Any]) -> str:
    """Return whose a template is, "" if it does not say."""
    found = _member(_member(_member(template, "metadata"), "annotations"), ANNOTATION_SUBMITTER)
    return found if isinstance(found, str) else ""


def stamp(
    kind: Kind, before: Any, after: Any, caller: UserName, asks: Callable[[dict[str, Any]], bool]
) -> tuple[Patch, tuple[str, ...]]:
    """Return the patch that makes the stamps of an object true, and the claims it overrules.

    `before` is None at create; `asks` tells whether a template asks for a managed resource: if one
    does, all of the object are stamped. A stamp once there stays: where it was left out it comes
    back, where it was changed the change is refused later. An object without one gets one only if
    its templates change anyway: a stamp is part of the template, and a new one rolls out.
    """
    templates = list(kind.find(after))
    earlier = list(kind.find(before)) if before is not None else []
    known = [each for _, template in earlier if (each := stamp_of(template))]
    claims = {claim: None for _, template in templates if (claim := stamp_of(template))}
    owner = known[0] if known else str(caller)
    same = templates == earlier
    if not known and not claims and (same or not any(asks(each) for _, each in templates)):
        return [], ()
    patch: Patch = []
    for pointer, template in templates:
        claimed = stamp_of(template)
        if claimed != owner and (before is None or not claimed):
            patch += _write(pointer, template, owner)
    overruled = tuple(claim for claim in claims if claim != owner) if before is None else ()
    return patch, overruled


def _write(pointer: str, template: dict[str, Any], owner: str) -> Patch:
    """Emit a parent only where it is absent: one that is there keeps what else it holds."""
    metadata = template.get("metadata")
    if not isinstance(metadata, dict):
        value: Any = {"annotations": {ANNOTATION_SUBMITTER: owner}}
        return [{"op": "add", "path": f"{pointer}/metadata", "value": value}]
    if not isinstance(metadata.get("annotations"), dict):
        value = {ANNOTATION_SUBMITTER: owner}
        return [{"op": "add", "path": f"{pointer}/metadata/annotations", "value": value}]
    key = ANNOTATION_SUBMITTER.replace("/", "~1")
    return [{"op": "add", "path": f"{pointer}/metadata/annotations/{key}", "value": owner}]


def _split(path: str) -> tuple[list[str], str, list[str]]:
    for star in ("[*]", "{*}"):
        before, found, after = path.partition(f"{star}.")
        if found:
            return before.split("."), star, after.split(".")
    return path.split("."), "", []


def _member(of: Any, key: str) -> Any:
    return of.get(key) if isinstance(of, dict) else None


def _members(of: Any, star: str) -> list[tuple[str, Any]]:
    if not star:
        return [("", of)]
    if star == "[*]":
        return [(f"/{i}", each) for i, each in enumerate(of)] if isinstance(of, list) else []
    if not isinstance(of, dict):
        return []
    return [(f"/{key.replace('~', '~0').replace('/', '~1')}", each) for key, each in of.items()]
