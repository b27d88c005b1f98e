"""The settings of Fairgate under which the cluster is judged.

They come from a values file of the chart, from the installed webhook, or are the chart's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from app.commands.doctor.referenced_objects import ReferencedObjects, referenced_objects
from app.config import setting_parsers
from app.config.settings import CLASSES, EXEMPT, MANAGED
from app.core.admission.pod_templates import TemplateKind
from app.core.admission.validation import ValidationRules
from app.core.admission.workload_kinds import BUILT_IN
from app.core.errors import InvalidInput
from app.core.podspec.resource_claims import IMPLICIT
from app.core.quantities import ManagedResources
from app.ports.cluster_survey import Object

BINDERS = ("system:kube-scheduler",)
"""Accounts that may bind pods, as in the chart's `schedulers.users`."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Settings that the checks use. The defaults are those of the chart."""

    managed: tuple[str, ...] = MANAGED
    classes: Mapping[str, str] = field(
        default_factory=lambda: {each.name: each.resource for each in CLASSES}
    )
    exempt: tuple[str, ...] = EXEMPT
    rules: ValidationRules = field(default_factory=ValidationRules)
    templates: tuple[TemplateKind, ...] = BUILT_IN
    binders: tuple[str, ...] = BINDERS
    references: ReferencedObjects | None = None
    """The objects that the values file names; None if there is no such file."""

    @property
    def resources(self) -> ManagedResources:
        """Return the managed resources, with those that are named by their device class."""
        return ManagedResources((*self.managed, IMPLICIT + "*"))


PARSERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "FAIRGATE_MANAGED_RESOURCES": ("managed", setting_parsers.resources),
    "FAIRGATE_EXEMPT_NAMESPACES": ("exempt", setting_parsers.labels),
    "FAIRGATE_RULES": ("rules", setting_parsers.rules),
    "FAIRGATE_TEMPLATES": ("templates", setting_parsers.templates),
}
"""Variable of the webhook's container, with the field that it sets."""


def installed_settings(deployment: Object) -> Assumptions:
    """Return the settings in the Deployment of the webhook. Raises InvalidInput.

    `binders` is empty: the accounts hold the right by RBAC.
    """
    found: dict[str, Any] = {"binders": ()}
    for name, value in _variables(deployment):
        if name == "FAIRGATE_DEVICE_CLASSES":
            classes = setting_parsers.device_classes(value)
            found["classes"] = {each.name: each.resource for each in classes}
        elif name in PARSERS:
            key, parse = PARSERS[name]
            found[key] = parse(value)
    return replace(Assumptions(), **found)


def _variables(deployment: Object) -> Iterable[tuple[str, str]]:
    spec = deployment.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("containers") or ():
        for variable in container.get("env") or ():
            if isinstance(variable.get("value"), str):
                yield variable["name"], variable["value"]


RULES = {
    ("devices", "variables"): "variables",
    ("devices", "paths"): "paths",
    ("devices", "refusePrivileged"): "refuse_privileged",
    ("devices", "taints"): "taints",
    ("preemption", "twins"): "refuse_preemption",
    ("antiAffinity", "refuseOtherNamespaces"): "refuse_other_namespaces",
    ("schedulers", "names"): "schedulers",
}
"""Chart value, with the rule that it sets."""


def planned_settings(text: str) -> Assumptions:
    """Return the settings in a values file of the chart. Raises InvalidInput."""
    try:
        values = yaml.safe_load(text) or {}
        if not isinstance(values, dict):
            raise TypeError("it holds no map")
        return _checked(_from_values(values))
    except (yaml.YAMLError, TypeError, ValueError, KeyError, AttributeError, re.error) as error:
        raise InvalidInput(
            f"The values file cannot be read ({error}); write YAML as in charts/fairgate."
        ) from error


def _checked(assumed: Assumptions) -> Assumptions:
    """Return settings that the rules can use. Raises ValueError or re.error."""
    for key in ("managed", "exempt", "binders"):
        for each in getattr(assumed, key):
            if not isinstance(each, str):
                raise ValueError(f"{each!r} in a list is no text")
    if not assumed.rules.schedulers:
        raise ValueError("schedulers.names is empty")
    re.compile(assumed.rules.paths)
    return assumed


def _from_values(values: Mapping[str, Any]) -> Assumptions:
    usual = Assumptions()
    controllers = _list(values, "controllerUsers", usual.rules.controllers)
    rules: dict[str, Any] = {"controllers": controllers}
    for (section, key), rule in RULES.items():
        value = (values.get(section) or {}).get(key)
        if value is not None:
            rules[rule] = tuple(value) if isinstance(value, list) else value
    entries = values.get("podTemplates")
    replaced = usual.templates if entries is None else _kinds(entries)
    binders = (values.get("schedulers") or {}).get("users")
    return Assumptions(
        managed=_list(values, "managedResources", usual.managed),
        classes={**usual.classes, **(values.get("deviceClasses") or {})},
        exempt=_list(values, "exemptNamespaces", usual.exempt),
        rules=replace(usual.rules, **rules),
        templates=(*replaced, *_kinds(values.get("extraPodTemplates") or ())),
        binders=usual.binders if binders is None else tuple(binders),
        references=referenced_objects(values),
    )


def _list(values: Mapping[str, Any], key: str, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Return a list of the chart with the list that extends it, such as `extraControllerUsers`."""
    given = values.get(key)
    extra = values.get(f"extra{key[0].upper()}{key[1:]}") or ()
    return (*(usual if given is None else given), *extra)


def _kinds(entries: Iterable[Mapping[str, Any]]) -> tuple[TemplateKind, ...]:
    return tuple(TemplateKind(e["group"], e["resource"], e["path"]) for e in entries)
