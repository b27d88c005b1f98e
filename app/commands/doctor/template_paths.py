"""Finds the pod templates that a custom resource can contain, in the schema of its definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.core.admission.pod_templates import TemplateKind
from app.core.errors import InvalidInput
from app.ports.cluster_survey import Object

DEEPEST = 8
"""Largest number of keys in a path."""


@dataclass(frozen=True, slots=True)
class CustomKind:
    """A kind of a CustomResourceDefinition, with the paths of its pod templates."""

    group: str
    resource: str
    kind: str
    versions: tuple[str, ...]
    paths: tuple[str, ...]
    is_namespaced: bool = True

    @property
    def name(self) -> str:
        """Return the name of the definition."""
        return f"{self.resource}.{self.group}"

    @property
    def templates(self) -> tuple[TemplateKind, ...]:
        """Return the paths as kinds with pod templates."""
        return tuple(TemplateKind(self.group, self.resource, path) for path in self.paths)


def custom_kind(definition: Object) -> CustomKind:
    """Return the kind of a definition. Only paths that the chart can express are in `paths`."""
    spec = definition["spec"]
    served = [each for each in spec.get("versions") or () if each.get("served")]
    paths: dict[str, None] = {}
    for version in served:
        schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
        paths |= dict.fromkeys(filter(_is_path, _templates(schema, "", DEEPEST)))
    return CustomKind(
        spec["group"],
        spec["names"]["plural"],
        spec["names"]["kind"],
        tuple(each["name"] for each in served),
        tuple(paths),
        spec.get("scope") != "Cluster",
    )


def _templates(schema: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
    if path and _is_template(schema):
        yield path
        return
    if depth == 0:
        return
    for key, each in (schema.get("properties") or {}).items():
        if not path and key in ("metadata", "status"):
            continue
        below = f"{path}.{key}" if path else key
        yield from _templates(each, below, depth - 1)
        items, values = each.get("items"), each.get("additionalProperties")
        if isinstance(items, dict):
            yield from _templates(items, f"{below}[*]", depth - 1)
        if isinstance(values, dict):
            yield from _templates(values, f"{below}{{*}}", depth - 1)


def _is_template(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is that of a pod template: a `spec` with `containers`."""
    spec = (schema.get("properties") or {}).get("spec") or {}
    return "containers" in (spec.get("properties") or {})


def _is_path(path: str) -> bool:
    try:
        TemplateKind("", "", path)
    except InvalidInput:
        return False
    return True
