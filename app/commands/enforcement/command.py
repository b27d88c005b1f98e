"""Implementation of `fairgate enforcement`: writes the policies as files of the API server.

An API server from 1.37 on loads policies from a folder (KEP-5793). No API request can change or
delete them. Webhooks are not written, because files may not refer to a Service.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.core.errors import InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.core.policy import Mode
from app.k8s_types import objects
from app.kube import kubeconfig as kubeconfig_files
from app.kube.answers import decode_answer
from app.kube.client import Client
from app.kube.enforcement_spec import (
    BINDING,
    CONFIG_MAP,
    WEBHOOKS,
    Object,
    Ref,
    read_documents,
    read_mode,
)
from app.terminal.yaml_text import dump_yaml

SUFFIX = ".static.k8s.io"
"""Ending of the names of such objects. The API server reserves it."""

FILE = "fairgate-policies.yaml"
CONFIGURATION = "apiserver.config.k8s.io/v1"
PLUGIN = "ValidatingAdmissionPolicy"

OBSERVES = (
    f"ConfigMap {CONFIG_MAP} has mode Observe, and policies from files always deny; "
    "install the chart with mode=Enforce first."
)
NO_POLICIES = (
    f"ConfigMap {CONFIG_MAP} has no policies; install the chart with policies.enabled=true first."
)


@dataclass(frozen=True, slots=True)
class EnforcementOptions:
    """Arguments of `fairgate enforcement`. `folder`: where the file is written."""

    folder: Path
    kubeconfig: KubeconfigOptions
    namespace: str


def run(options: EnforcementOptions) -> None:
    """Write the file, and print the configuration of the API server. Raises FairgateError."""
    text = dump_yaml(static_policies(asyncio.run(_read(options))))
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / FILE).write_text(text)
    except OSError as error:
        raise InvalidInput(f"{options.folder / FILE} cannot be written: {error}") from error
    print(f"# {options.folder / FILE} is written. Copy it to every API server, and add the next")
    print("# lines to the file of --admission-control-config-file, with the path of its folder:")
    print(dump_yaml([admission_configuration(options.folder.absolute())]))


def static_policies(data: Mapping[str, str]) -> list[Object]:
    """Return the policies and bindings of the ConfigMap as objects for files.

    Raises InvalidInput for an installation that observes, or has no policies.
    """
    if read_mode(data) is Mode.OBSERVE:
        raise InvalidInput(OBSERVES)
    documents = read_documents(data)
    found = [_static(document) for ref, document in documents.items() if _is_policy(ref)]
    if not found:
        raise InvalidInput(NO_POLICIES)
    return found


def admission_configuration(folder: Path) -> dict[str, Any]:
    """Return the configuration with which an API server loads the policies of a folder."""
    plugin = {
        "apiVersion": CONFIGURATION,
        "kind": f"{PLUGIN}Configuration",
        "staticManifestsDir": str(folder),
    }
    return {
        "apiVersion": CONFIGURATION,
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": PLUGIN, "configuration": plugin}],
    }


def _is_policy(ref: Ref) -> bool:
    return ref.kind not in WEBHOOKS


def _static(document: Object) -> Object:
    name, spec = document["metadata"]["name"] + SUFFIX, dict(document["spec"])
    if "paramKind" in spec or "paramRef" in spec:
        raise InvalidInput(f"{name} has parameters, which policies from files cannot have.")
    if document["kind"] == BINDING:
        spec["policyName"] += SUFFIX
    return {**document, "metadata": {"name": name}, "spec": spec}


async def _read(options: EnforcementOptions) -> Mapping[str, str]:
    who = kubeconfig_files.find_caller(options.kubeconfig, os.environ)
    client = await Client.connect_with(who.options)
    try:
        space = quote(options.namespace, safe="")
        body = await client.request("GET", f"/api/v1/namespaces/{space}/configmaps/{CONFIG_MAP}")
    finally:
        await client.close()
    return decode_answer(body, objects.ConfigMap).data or {}
