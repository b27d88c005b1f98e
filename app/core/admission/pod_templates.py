"""Pod templates inside other objects: where they are, the submitter stamp, and warnings.

A warning names a pod template whose pods the admission rules would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.admission.unsatisfiable import PodRequirements, refuse_invalid_annotations
from app.core.errors import InvalidInput
from app.core.model import UserName
from app.core.podspec.annotations import (
    annotation_warnings,
    named_gang,
    reserved_key_warnings,
    unknown_key_warnings,
)
from app.core.podspec.pod_groups import GangMetadata, gang_warnings
from app.core.release_patch import TEMPLATE_LABEL
from app.core.safe_text import quote_text
from app.core.well_known import ANNOTATION_SUBMITTER, WRITTEN_KEYS

Patch = list[dict[str, Any]]

_PATH = re.compile(r"[A-Za-z0-9]+(\.[A-Za-z0-9]+)*((\[\*\]|\{\*\})(\.[A-Za-z0-9]+)+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """A pod template in an object. `pointer` is its JSON pointer.

    `stamp_path` leads from the content to the annotations that the operator copies to its pods.
    `has_spec` is False if only these annotations are at a known place, and not the pod spec.
    """

    pointer: str
    content: dict[str, Any]
    stamp_path: tuple[str, ...] = ("metadata", "annotations")
    has_spec: bool = True

    @property
    def stamp(self) -> str:
        """The submitter in the stamp; "" if it is missing."""
        found: Any = self.content
        for key in (*self.stamp_path, ANNOTATION_SUBMITTER):
            found = _member(found, key)
        return found if isinstance(found, str) else ""

    def stamp_patch(self, owner: str) -> Patch:
        """Return the patch that writes a stamp. It adds a parent only if it is absent."""
        pointer, at = self.pointer, self.content
        for done, key in enumerate(self.stamp_path):
            pointer = f"{pointer}/{key}"
            if not isinstance(at.get(key), dict):
                value: dict[str, Any] = {ANNOTATION_SUBMITTER: owner}
                for missing in reversed(self.stamp_path[done + 1 :]):
                    value = {missing: value}
                return [{"op": "add", "path": pointer, "value": value}]
            at = at[key]
        key = ANNOTATION_SUBMITTER.replace("/", "~1")
        return [{"op": "add", "path": f"{pointer}/{key}", "value": owner}]


@dataclass(frozen=True, slots=True)
class TemplateKind:
    """One place of pod templates in a kind of object. A kind may have several.

    `path` is the one in the chart's `podTemplates`. It leads to pod templates or, if its last key
    is `annotations`, to the annotations that the operator copies to its pods.
    """

    group: str
    resource: str
    path: str

    def __post_init__(self) -> None:
        if not _PATH.fullmatch(self.path):
            raise InvalidInput(
                f"{quote_text(self.path, 80)} is not a path of a pod template; write keys joined "
                "by points, such as spec.template, with [*] or {*} after at most one key."
            )

    @property
    def has_spec(self) -> bool:
        """Whether the path leads to templates with a pod spec."""
        return self.path.rpartition(".")[2] != "annotations"

    def find_templates(self, document: Any) -> Iterator[FoundTemplate]:
        """Yield every template at this path in an object."""
        before, star, after = _split_path(self.path)
        if not (star or self.has_spec):
            before, after = [], before
        where, found = "", document
        for key in before:
            where, found = f"{where}/{key}", _member(found, key)
        for name, each in _members(found, star):
            pointer = f"{where}{name}"
            if not self.has_spec:
                if isinstance(each, dict) and (star or isinstance(each.get(after[0]), dict)):
                    yield FoundTemplate(pointer, each, tuple(after), has_spec=False)
                continue
            for key in after:
                pointer, each = f"{pointer}/{key}", _member(each, key)
            if isinstance(each, dict):
                yield FoundTemplate(pointer, each)


def group_by_resource(
    kinds: Iterable[TemplateKind],
) -> dict[tuple[str, str], tuple[TemplateKind, ...]]:
    """Return the places of templates by group and resource."""
    found: dict[tuple[str, str], tuple[TemplateKind, ...]] = {}
    for kind in kinds:
        key = (kind.group, kind.resource)
        found[key] = (*found.get(key, ()), kind)
    return found


def find_templates(kinds: Sequence[TemplateKind], document: Any) -> list[FoundTemplate]:
    """Return all templates of an object. `kinds` are the places in its kind."""
    return [found for kind in kinds for found in kind.find_templates(document)]


def read_stamps(kinds: Sequence[TemplateKind], document: Any) -> list[str]:
    """Return the stamp of every template in an object; "" if it is missing."""
    return [found.stamp for found in find_templates(kinds, document)]


def stamp_templates(
    kinds: Sequence[TemplateKind],
    before: Any,
    after: Any,
    caller: UserName,
    asks: Callable[[dict[str, Any]], bool],
) -> tuple[Patch, tuple[str, ...]]:
    """Return the patch that corrects the stamps of an object, and the overruled claims.

    `before` is None at create. `asks` returns whether a template requests a managed resource. If
    one does, all templates of the object are stamped. Templates without a known spec are stamped at
    create. An existing stamp stays: a removed stamp is restored, and a changed one is refused
    later. An object without a stamp gets one only if its templates change anyway: a stamp is part
    of the template, so it causes a rollout.
    """
    templates, earlier = find_templates(kinds, after), find_templates(kinds, before)
    known = [found.stamp for found in earlier if found.stamp]
    claims = {found.stamp: None for found in templates if found.stamp}
    owner = known[0] if known else str(caller)
    if not known and not claims and not _is_to_be_stamped(templates, earlier, asks):
        return [], ()
    patch: Patch = []
    for found in templates:
        if found.stamp != owner and (before is None or not found.stamp):
            patch += found.stamp_patch(owner)
    overruled = tuple(claim for claim in claims if claim != owner) if before is None else ()
    return patch, overruled


def _is_to_be_stamped(
    templates: list[FoundTemplate],
    earlier: list[FoundTemplate],
    asks: Callable[[dict[str, Any]], bool],
) -> bool:
    specs = [found.content for found in templates if found.has_spec]
    if len(specs) < len(templates) and not earlier:
        return True
    changed = specs != [found.content for found in earlier if found.has_spec]
    return changed and any(asks(each) for each in specs)


def _split_path(path: str) -> tuple[list[str], str, list[str]]:
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


JOBS = {("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets")}
"""Kinds with the pods of a Job."""


def template_warnings(
    kinds: Sequence[TemplateKind], document: Any, asks: Callable[[dict[str, Any]], bool]
) -> tuple[str, ...]:
    """Return a warning for each part of the templates that needs a second look.

    `asks` returns whether a template requests a managed resource. Other pods join no gang.
    """
    warnings: dict[str, None] = {}
    names = {(kind.group, kind.resource) for kind in kinds}
    job = "a Job" if names & JOBS else ""
    for found in find_templates(kinds, document):
        template = found.content
        if not (found.has_spec and asks(template)):
            continue
        words = GangMetadata(
            _metadata_texts(template, "labels"), _metadata_texts(template, "annotations"), job
        )
        labels = sorted(WRITTEN_KEYS.intersection(words.labels))
        warnings |= dict.fromkeys(map(TEMPLATE_LABEL.format, labels))
        given = words.annotations.keys() - {ANNOTATION_SUBMITTER}
        warnings |= dict.fromkeys(reserved_key_warnings(given, "pods of this template lose it"))
        warnings |= dict.fromkeys(unknown_key_warnings(words.labels, words.annotations))
        warnings |= dict.fromkeys([*annotation_warnings(words.annotations), *gang_warnings(words)])
        if refused := refuse_invalid_annotations(PodRequirements({}, words.annotations)):
            warnings[refused.message] = None
        if ("batch", "jobs") in names:
            warnings |= dict.fromkeys(_gang_size_warnings(document, words))
    return tuple(warnings)


def _gang_size_warnings(document: Any, words: GangMetadata) -> list[str]:
    """Warn about a Job with more parallel pods than its gang. The other pods wait alone."""
    name, size = named_gang(words.annotations)
    spec = document.get("spec")
    pods = spec.get("parallelism", 1) if isinstance(spec, dict) else 1
    most = spec.get("completions", pods) if isinstance(spec, dict) else 1
    if not name or not (isinstance(pods, int) and isinstance(most, int)) or min(pods, most) <= size:
        return []
    return [
        f"Fairgate: this Job has {min(pods, most)} pods at once, and their gang {quote_text(name)} "
        f"only {size}, so the others wait one by one; set fairgate.io/gang: job "
        "to include all pods."
    ]


def _metadata_texts(template: Mapping[str, Any], key: str) -> dict[str, str]:
    metadata = template.get("metadata")
    found = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}
