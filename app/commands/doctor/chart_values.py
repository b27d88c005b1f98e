"""The values of the chart that fit a cluster, as YAML with comments.

Lists of the chart are extended, not replaced, so that defaults of later versions still apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from app.commands.doctor.assumptions import BINDERS, Assumptions
from app.commands.doctor.cluster_checks import other_binders, other_schedulers
from app.commands.doctor.device_checks import uncounted_classes, unmanaged_devices
from app.commands.doctor.findings import names
from app.commands.doctor.installation_checks import policy_mode
from app.commands.doctor.snapshot import ClusterSnapshot
from app.commands.doctor.workload_checks import (
    describe_workloads,
    refused_workloads,
    unlisted_kinds,
)
from app.core.policy import Mode
from app.core.safe_text import escape_hidden
from app.terminal.yaml_text import dump_yaml

IMAGE = "registry.example.com/fairgate"
SECRET = "fairgate-redis-url"  # noqa: S105 (a name)
EXEMPTED = (
    "Namespaces of node agents. Accounts that may create pods there can "
    "use devices without Fairgate."
)
LONGEST_FAULT = 200
"""Characters of a comment about a fault."""

WIDTH = 10_000
"""Longest line of YAML, so that no value is folded."""


@dataclass(frozen=True, slots=True)
class Section:
    """One top-level key, with a comment above it, and comments for the entries of a list."""

    key: str
    value: Any
    comment: str
    notes: Mapping[str, str]


def chart_values(
    seen: ClusterSnapshot,
    namespace: str,
    redis_url: str = "",
    image: str = "",
    redis_faults: Iterable[str] = (),
) -> list[Section]:
    """Return the values for a cluster. Empty lists are left out.

    `namespace` is that of Fairgate, which must be exempt. `redis_faults`: the messages of
    the failed checks of the Redis.
    """
    usual, assumed = Assumptions(), seen.assumptions
    sections = [_mode(seen), _image(seen, image), _redis(redis_url, namespace, redis_faults)]
    spaces = [space for space in refused_workloads(seen) if space.agents]
    exempt = {
        s.namespace: names(describe_workloads(s.agents)) for s in spaces if s.should_be_exempt
    }
    kept = [
        f"Not exempted: {s.namespace_and_tenant}, where {names(describe_workloads(s.agents))} "
        "would be refused. Move it to "
        "a namespace\nof its own: Fairgate would not queue the pods of an exempt namespace."
        for s in spaces
        if not s.should_be_exempt
    ]
    exempt.setdefault(namespace, "Fairgate itself")
    extra = _added(assumed.exempt, usual.exempt, exempt)
    if extra or kept:
        comment = "\n".join([EXEMPTED, *kept])
        sections.append(Section("extraExemptNamespaces", extra, comment, exempt))
    extended = [name for name in uncounted_classes(seen).values() if name]
    sections += _extension(
        "extraManagedResources",
        _added(assumed.managed, usual.managed, [*unmanaged_devices(seen), *extended]),
        "Devices of this cluster.",
    )
    classes = {k: v for k, v in assumed.classes.items() if usual.classes.get(k) != v}
    classes |= {name: resource for name, resource in uncounted_classes(seen).items() if resource}
    if classes:
        sections.append(Section("deviceClasses", classes, "DRA device classes.", {}))
    sections += _schedulers(seen)
    sections += _extension(
        "extraControllerUsers",
        _added(assumed.rules.controllers, usual.rules.controllers, ()),
        "Accounts that may name the submitter of a pod.",
        {},
    )
    kinds = [
        *_listed_kinds(assumed, usual),
        *(k for u in unlisted_kinds(seen) for k in u.templates),
    ]
    if kinds:
        entries = [
            {"group": k.group, "versions": ["*"], "resource": k.resource, "path": k.path}
            for k in dict.fromkeys(kinds)
        ]
        comment = "Pod templates of the kinds of operators."
        sections.append(Section("extraPodTemplates", entries, comment, {}))
    return sections


def as_values(sections: Iterable[Section]) -> dict[str, Any]:
    """Return the values without comments."""
    return {each.key: each.value for each in sections}


def as_yaml(sections: Iterable[Section]) -> str:
    """Return the values as a file for `helm install --values`."""
    parts = ["# Values of the chart fairgate for this cluster, written by fairgate doctor."]
    for each in sections:
        written = dump_yaml([{each.key: each.value}], width=WIDTH, default_flow_style=False)
        lines = [_noted(line, each.notes) for line in written.rstrip().splitlines()]
        parts.append("\n".join([*(f"# {line}" for line in each.comment.splitlines()), *lines]))
    return "\n\n".join(parts) + "\n"


def _noted(line: str, notes: Mapping[str, str]) -> str:
    note = notes.get(line.strip().removeprefix("- ").strip("'\""))
    return f"{line}  # {note}" if note else line


def _mode(seen: ClusterSnapshot) -> Section:
    mode = (policy_mode(seen) if seen.installation.exists else None) or Mode.OBSERVE
    return Section("mode", mode.value, _MODE_COMMENTS[mode], {})


_MODE_COMMENTS = {
    Mode.OBSERVE: "Observe: no pod is held or refused, and Fairgate counts and warns. Change it to "
    "Enforce\nwhen fairgate doctor finds no problem, and refusals in Observe are intended.",
    Mode.ENFORCE: "The mode of this installation: pods are held and refused.",
}


def _image(seen: ClusterSnapshot, image: str) -> Section:
    webhook = seen.installation.deployments.get("fairgate-webhook")
    if webhook and not image:
        image = webhook["spec"]["template"]["spec"]["containers"][0]["image"]
    name, _, digest = (image or IMAGE).partition("@")
    repository, _, tag = name.rpartition(":")
    if not repository or "/" in tag:  # the colon is that of a port
        repository, tag = name, ""
    optional = {"tag": tag, "digest": digest}
    value = {"repository": repository} | {key: part for key, part in optional.items() if part}
    comment = "" if image else "Change it to the repository with your image of Fairgate."
    return Section("image", value, comment, {})


def _redis(url: str, namespace: str, faults: Iterable[str]) -> Section:
    if not url:
        return Section(
            "redis",
            {"bundled": {"enabled": True}},
            "A Redis for trials. For production set redis.url or redis.existingSecret instead.",
            {},
        )
    value: dict[str, str] = {"url": url}
    comment = [f"Not in order: {escape_hidden(fault)[:LONGEST_FAULT]}" for fault in faults]
    if urlsplit(url).username is not None:  # a password may be in the place of the user
        value = {"existingSecret": SECRET}
        comment += [
            "The URL contains a login, so it must be in a Secret:",
            f"kubectl create secret generic {SECRET} --namespace {namespace} --from-file=url=FILE",
        ]
    return Section("redis", value, "\n".join(comment), {})


def _schedulers(seen: ClusterSnapshot) -> list[Section]:
    found, binders = other_schedulers(seen), other_binders(seen)
    rules, usual = seen.assumptions.rules, Assumptions()
    users = list(dict.fromkeys([*BINDERS, *seen.assumptions.binders, *_bound(seen), *binders]))
    listed = list(dict.fromkeys([*rules.schedulers, *found]))
    if tuple(listed) == usual.rules.schedulers and tuple(users) == BINDERS:
        return []
    return [
        Section(
            "schedulers",
            {"names": listed, "users": users},
            "Schedulers that may place pods, and the accounts that bind pods. A listed account may "
            "bind\nany pod, so remove accounts that are no schedulers.",
            {},
        )
    ]


def _bound(seen: ClusterSnapshot) -> list[str]:
    """Return the accounts that hold the right to bind in an installed Fairgate."""
    return seen.accounts.holders(("fairgate.io", "podgates", "bind"))


def _listed_kinds(assumed: Assumptions, usual: Assumptions) -> list[Any]:
    return [kind for kind in assumed.templates if kind not in usual.templates]


def _added(now: Iterable[str], usual: Iterable[str], more: Iterable[str]) -> list[str]:
    """Return the names in `now` and `more` that the chart does not have."""
    return [name for name in dict.fromkeys([*now, *more]) if name not in set(usual)]


def _extension(
    key: str, items: list[str], comment: str, notes: Mapping[str, str] | None = None
) -> list[Section]:
    return [Section(key, items, comment, notes or {})] if items else []
