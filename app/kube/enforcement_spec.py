"""Desired webhook configurations and admission policies, and their difference from live objects.

Pure: no I/O, no state. The contents of the policies are opaque here.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import yaml

from app.core.errors import InvalidInput
from app.core.policy import Mode

Object = dict[str, Any]
"""An object of the API server, as JSON."""

CONFIG_MAP = "fairgate-enforcement"
API_VERSION = "admissionregistration.k8s.io/v1"
BINDING = "ValidatingAdmissionPolicyBinding"
HOLD_KIND = "MutatingWebhookConfiguration"
"""The kind of the webhooks that hold pods."""

WEBHOOKS = frozenset({HOLD_KIND, "ValidatingWebhookConfiguration"})
PATHS = {
    kind: f"/apis/{API_VERSION}/{kind.lower()}s"
    for kind in (*sorted(WEBHOOKS), "ValidatingAdmissionPolicy", BINDING)
} | {"ValidatingAdmissionPolicy": f"/apis/{API_VERSION}/validatingadmissionpolicies"}

ALWAYS_ENFORCED = frozenset(
    {
        "fairgate-authors",
        "fairgate-templates",
        "fairgate-tenants",
        "templates.fairgate.io",
        "tenants.fairgate.io",
        "users.fairgate.io",
    }
)
"""Bindings and webhooks that protect names and weights in every mode."""

MODE = "mode"
"""Key of the ConfigMap with the mode of the installation. Other keys contain objects."""

MOST_DIFFERENCES = 5

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C, which all wheels have, reads the ConfigMap in 13 ms of CPU, not in 165 ms."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object that Fairgate enforces."""

    kind: str
    name: str

    @property
    def path(self) -> str:
        """Return its API path."""
        return f"{PATHS[self.kind]}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def read_documents(data: Mapping[str, str] | None) -> dict[Ref, Object]:
    """Return the objects in the ConfigMap. A key may contain several YAML documents.

    Raises InvalidInput for an object of another kind, or if there is no object.
    """
    found: dict[Ref, Object] = {}
    for key, text in sorted((data or {}).items()):
        if key == MODE:
            continue
        try:
            documents = [each for each in yaml.load_all(text, LOADER) if each is not None]
        except yaml.YAMLError as error:
            raise InvalidInput(f"{key} of ConfigMap {CONFIG_MAP} is not YAML: {error}") from error
        for document in documents:
            ref = _ref(key, document)
            if ref in found:
                raise InvalidInput(f"ConfigMap {CONFIG_MAP} holds {ref} twice; remove one.")
            found[ref] = document
    if not found:
        raise InvalidInput(f"ConfigMap {CONFIG_MAP} holds no object; apply the chart again.")
    return found


def read_mode(data: Mapping[str, str] | None) -> Mode:
    """Return the mode of the installation, Enforce if the ConfigMap has none.

    Raises InvalidInput for an unknown mode.
    """
    written = (data or {}).get(MODE, Mode.ENFORCE.value)
    try:
        return Mode(written.strip())
    except ValueError as error:
        raise InvalidInput(
            f"{MODE} of ConfigMap {CONFIG_MAP} is '{written[:50]}'; write Enforce or Observe."
        ) from error


def _ref(key: str, document: Any) -> Ref:
    try:
        ref = Ref(document["kind"], document["metadata"]["name"])
        known = document["apiVersion"] == API_VERSION and ref.kind in PATHS
        whole = isinstance(ref.name, str) and bool(ref.name) and content_field(ref.kind) in document
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{key} of ConfigMap {CONFIG_MAP} is not a valid object.") from error
    if not (known and whole):
        raise InvalidInput(
            f"{key} of ConfigMap {CONFIG_MAP}: {str(ref)[:100]} is not kept by Fairgate; only "
            f"whole objects of {API_VERSION} are."
        )
    return ref


def content_field(kind: str) -> str:
    """Return the field with the contents of an object of this kind."""
    return "webhooks" if kind in WEBHOOKS else "data" if kind == "ConfigMap" else "spec"


def desired_metadata(document: Object) -> Object:
    """Return the desired metadata of the live object: name, labels, annotations."""
    meta = document["metadata"]
    return {
        "name": meta["name"],
        "labels": dict(meta.get("labels") or {}),
        "annotations": dict(meta.get("annotations") or {}),
    }


def desired_object(normal: Object, ca_pem: bytes, denies: bool) -> Object:
    """Return the desired live object: with Fairgate's CA, and weakened unless it `denies`.

    A weakened policy only writes audit annotations, because each GPU pod lacks the gate in mode
    Observe; the webhook warns of other violations. A weakened webhook may fail. Objects in ALWAYS,
    which protect names and weights, are not weakened. They hold no pod, and values that are forged
    in Observe mode would be trusted later.
    """
    wanted = copy.deepcopy(normal)
    for webhook in webhooks(wanted):
        webhook["clientConfig"]["caBundle"] = base64.b64encode(ca_pem).decode("ascii")
        if not denies and webhook["name"] not in ALWAYS_ENFORCED:
            webhook["failurePolicy"] = "Ignore"
    if (
        not denies
        and wanted["kind"] == BINDING
        and wanted["metadata"]["name"] not in ALWAYS_ENFORCED
    ):
        wanted["spec"]["validationActions"] = ["Audit"]
    return wanted


def is_denying(live: Object) -> bool:
    """Return whether a live object is not weakened. Objects in ALWAYS never are: return False."""
    if live["kind"] == BINDING:
        is_ours_alone = live["metadata"]["name"] in ALWAYS_ENFORCED
        return not is_ours_alone and "Deny" in live["spec"]["validationActions"]
    return any(
        each["name"] not in ALWAYS_ENFORCED and each["failurePolicy"] == "Fail"
        for each in webhooks(live)
    )


def webhooks(item: Object) -> list[Object]:
    """Return the webhooks of a configuration, empty for other objects."""
    return list(item.get("webhooks") or ()) if item["kind"] in WEBHOOKS else []


def differences(live: Object, wanted: Object) -> list[str]:
    """Return the fields in which an object differs from `wanted`, empty if it needs no write.

    Additional labels and annotations are allowed. Other additional fields are not.
    """
    found: list[str] = []
    for which in ("labels", "annotations"):
        present = live["metadata"].get(which) or {}
        found += [
            f"metadata.{which}.{key}"
            for key, value in wanted["metadata"][which].items()
            if present.get(key) != value
        ]
    at = content_field(wanted["kind"])
    return [*found, *_differences(live.get(at), wanted[at], at)][:MOST_DIFFERENCES]


def _differences(live: Any, wanted: Any, at: str) -> Iterator[str]:
    match live, wanted:
        case dict(), dict():
            for key in sorted(live.keys() | wanted.keys()):
                yield from _differences(live.get(key), wanted.get(key), f"{at}.{key}")
        case list(), list() if len(live) == len(wanted):
            for index, pair in enumerate(zip(live, wanted, strict=True)):
                yield from _differences(*pair, f"{at}[{index}]")
        case _ if live != wanted:
            yield at


def shared_ca(live: Object) -> bytes | None:
    """Return the CA bundle that all webhooks of a configuration share, or None."""
    bundles = {str(each["clientConfig"].get("caBundle", "")) for each in webhooks(live)}
    if len(bundles) != 1:
        return None
    return base64.b64decode(bundles.pop()) or None


def has_other_writer(live: Object, ours: str) -> bool:
    """Return whether an object has fields of a field manager except `ours`."""
    return bool(_other_writers(live, ours))


def last_writer(live: Object, ours: str) -> str:
    """Return name and time of the last field manager except `ours`."""
    entries = _other_writers(live, ours)
    if not entries:
        return "unknown"
    last = max(entries, key=lambda each: str(each.get("time")))
    return f"{last.get('manager', 'unknown')} at {last.get('time', 'unknown')}"


def _other_writers(live: Object, ours: str) -> list[Object]:
    return [
        each
        for each in live["metadata"].get("managedFields") or ()
        if each.get("manager") != ours and not each.get("subresource")
    ]
