"""What Fairgate keeps in force: the documents of its ConfigMap, and how the live objects differ.

Pure: no I/O, no memory. Knows nothing of what the policies say.
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

Object = dict[str, Any]
"""An object of the API server, as JSON."""

CONFIG_MAP = "fairgate-enforcement"
API_VERSION = "admissionregistration.k8s.io/v1"
BINDING = "ValidatingAdmissionPolicyBinding"
WEBHOOKS = frozenset({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
PATHS = {
    kind: f"/apis/{API_VERSION}/{kind.lower()}s"
    for kind in (*sorted(WEBHOOKS), "ValidatingAdmissionPolicy", BINDING)
} | {"ValidatingAdmissionPolicy": f"/apis/{API_VERSION}/validatingadmissionpolicies"}

ALWAYS = frozenset(
    {
        "fairgate-templates",
        "fairgate-tenants",
        "templates.fairgate.io",
        "tenants.fairgate.io",
        "users.fairgate.io",
    }
)
"""Bindings and webhooks that guard names and weights, whatever the mode."""

HELM_MARKS = "meta.helm.sh/"
"""Annotations by which helm knows its own objects."""

MOST_DIFFERENCES = 5


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """One object that is kept in force."""

    kind: str
    name: str

    @property
    def path(self) -> str:
        """Where it is in the API server."""
        return f"{PATHS[self.kind]}/{quote(self.name, safe='')}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def read_documents(data: Mapping[str, str] | None) -> dict[Ref, Object]:
    """Return the objects written in the ConfigMap, under any keys, several to a key.

    Raises InvalidInput for one that is not of a kind we keep, and if there is none at all.
    """
    found: dict[Ref, Object] = {}
    for key, text in sorted((data or {}).items()):
        try:
            documents = [each for each in yaml.safe_load_all(text) if each is not None]
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


def _ref(key: str, document: Any) -> Ref:
    try:
        ref = Ref(document["kind"], document["metadata"]["name"])
        known = document["apiVersion"] == API_VERSION and ref.kind in PATHS
        whole = isinstance(ref.name, str) and bool(ref.name) and field(ref.kind) in document
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(f"{key} of ConfigMap {CONFIG_MAP} holds what is no object.") from error
    if not (known and whole):
        raise InvalidInput(
            f"{key} of ConfigMap {CONFIG_MAP}: {str(ref)[:100]} is not kept by Fairgate; only "
            f"whole objects of {API_VERSION} are."
        )
    return ref


def field(kind: str) -> str:
    """Return where an object of this kind has its contents."""
    return "webhooks" if kind in WEBHOOKS else "data" if kind == "ConfigMap" else "spec"


def identity(document: Object, marks: Mapping[str, str]) -> Object:
    """Return what is to be in the live object's metadata: name, labels, annotations."""
    meta = document["metadata"]
    return {
        "name": meta["name"],
        "labels": dict(meta.get("labels") or {}),
        "annotations": {**(meta.get("annotations") or {}), **marks},
    }


def helm_marks(item: Object) -> dict[str, str]:
    """Return by which annotations helm calls this object its own; none if it does not."""
    written = item["metadata"].get("annotations") or {}
    return {key: value for key, value in written.items() if key.startswith(HELM_MARKS)}


def in_force(normal: Object, ca_pem: bytes, observing: bool) -> Object:
    """Return what the live object must be: with our CA, and without teeth while observing.

    What guards names and weights keeps its teeth: it holds no pod, and what is forged while we
    observe would be believed afterwards.
    """
    wanted = copy.deepcopy(normal)
    for webhook in webhooks(wanted):
        webhook["clientConfig"]["caBundle"] = base64.b64encode(ca_pem).decode("ascii")
        if observing and webhook["name"] not in ALWAYS:
            webhook["failurePolicy"] = "Ignore"
    is_ours_alone = wanted["metadata"]["name"] in ALWAYS
    if observing and wanted["kind"] == BINDING and not is_ours_alone:
        wanted["spec"]["validationActions"] = ["Warn", "Audit"]
    return wanted


def webhooks(item: Object) -> list[Object]:
    """Return the webhooks of a configuration; none of any other object."""
    return list(item.get("webhooks") or ()) if item["kind"] in WEBHOOKS else []


def differences(live: Object, wanted: Object) -> list[str]:
    """Return in which fields an object is not as wanted: none, and nothing is to be written.

    Labels and annotations of others may be there; anything else may not.
    """
    found: list[str] = []
    for which in ("labels", "annotations"):
        present = live["metadata"].get(which) or {}
        found += [
            f"metadata.{which}.{key}"
            for key, value in wanted["metadata"][which].items()
            if present.get(key) != value
        ]
    at = field(wanted["kind"])
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


def lacks_only_ca(live: Object, wanted: Object, known: Object | None) -> bool:
    """Tell whether a configuration is as the chart makes it, before a CA is written.

    `known`: what it was when we last looked; what had a CA then has lost it by somebody's doing.
    """
    had = {each["name"] for each in webhooks(known)} if known is not None else set()
    lacks = {
        each["name"] for each in webhooks(live) if not each["clientConfig"].get("caBundle")
    } - had
    bare = copy.deepcopy(wanted)
    for webhook in webhooks(bare):
        if webhook["name"] in lacks:
            del webhook["clientConfig"]["caBundle"]
    return not differences(live, bare)


def only_ca(live: Object) -> bytes | None:
    """Return the one CA bundle that all webhooks of a configuration have; None: there is none."""
    bundles = {str(each["clientConfig"].get("caBundle", "")) for each in webhooks(live)}
    if len(bundles) != 1:
        return None
    return base64.b64decode(bundles.pop()) or None


def last_writer(live: Object, ours: str) -> str:
    """Return who last wrote the object, by the name its program gave itself, and when."""
    entries = [
        each
        for each in live["metadata"].get("managedFields") or ()
        if each.get("manager") != ours and not each.get("subresource")
    ]
    if not entries:
        return "unknown"
    # Times are whole seconds: helm may have written in the same one, just before.
    last = max(entries, key=lambda each: (str(each.get("time")), each.get("manager") != "helm"))
    return f"{last.get('manager', 'unknown')} at {last.get('time', 'unknown')}"
