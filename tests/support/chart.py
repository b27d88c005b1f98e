"""Renders the chart with helm and creates its objects with kubectl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from app.devcluster.binaries import Tools
from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import CHART
from app.devcluster.processes import child_environment
from app.kube.enforcement_spec import CONFIG_MAP, LOADER, read_documents

Object = dict[str, Any]

REQUIRED = {
    "redis.url=redis://redis:6379/0": ("redis.url", "redis.existingSecret", "redis.bundled"),
    "image.repository=registry.example/fairgate": ("image.repository",),
}
"""The values without a default, each with the values that replace it."""

ROLES = ("webhook", "controller", "api")
ASKED = "chart-asked"
"""A namespace for which the webhook receives GPU pods."""

RESTRICTED = "chart-restricted"
"""A namespace that accepts only pods of the restricted Pod Security Standard."""


class Chart:
    """Renders the chart, once for the same values. `home` is the directory for helm's cache."""

    def __init__(self, tools: Tools, home: Path) -> None:
        self._helm = str(tools.helm)
        self._environment = {**child_environment(home), "GOGC": "off"}  # it ends within a second
        self._rendered: dict[tuple[str, ...], subprocess.CompletedProcess[str]] = {}

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run helm with these arguments and return the completed process."""
        return subprocess.run(
            [self._helm, *args],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def template(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Render the chart. An argument `a.b=c` is a value, and `--x=y` is a flag of helm."""
        needed = [value for value, named in REQUIRED.items() if not any(map(_names(named), args))]
        args = (*needed, *args)
        files = (Path(a.removeprefix("--values=")) for a in args if a.startswith("--values="))
        key = (*args, *(file.read_text() for file in files))
        if key not in self._rendered:
            flags = [part for a in args for part in ((a,) if a.startswith("--") else ("--set", a))]
            where = ["template", "fairgate", str(CHART), "--namespace", "fairgate-system"]
            self._rendered[key] = self.run(*where, *flags)
        return self._rendered[key]

    def render(self, *args: str) -> list[Object]:
        """Return the documents of `template`, and those that the webhook's processes create."""
        done = self.template(*args)
        assert done.returncode == 0, done.stderr
        documents = [document for document in yaml.load_all(done.stdout, LOADER) if document]
        return documents + enforced(documents)


def enforced(documents: list[Object]) -> list[Object]:
    """Return the webhook configurations and policies in the ConfigMap."""
    config = of_kind(documents, "ConfigMap").get(CONFIG_MAP)
    return list(read_documents(config["data"]).values()) if config else []


def _names(names: tuple[str, ...]) -> Callable[[str], bool]:
    """Return whether an argument sets one of these values."""
    return lambda argument: argument.startswith(names)


def of_kind(documents: list[Object], kind: str) -> dict[str, Object]:
    """Return the documents of a kind, by name."""
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == kind}


def webhooks_of(documents: list[Object]) -> dict[str, Object]:
    """Return all webhooks of the chart, by name."""
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    configurations = [of_kind(documents, kind)["fairgate"] for kind in kinds]
    return {hook["name"]: hook for each in configurations for hook in each["webhooks"]}


def the_webhook(documents: list[Object]) -> Object:
    """Return the webhook that holds pods."""
    return webhooks_of(documents)["hold.fairgate.io"]


def make(
    cluster: LocalCluster, api: str, kind: str, name: str, fields: Object, *flags: str
) -> Object:
    """Create an object and return it as stored by the API server. Raises ClusterError."""
    document = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}
    said = cluster.kubectl("create", *flags, "-o", "json", "-f", "-", stdin=json.dumps(document))
    made: Object = json.loads(said)
    return made


def make_ours(cluster: LocalCluster, kind: str, name: str, spec: Object, *flags: str) -> Object:
    """Create a Tenant, Pool or Policy."""
    return make(cluster, "fairgate.io/v1alpha1", kind, name, {"spec": spec}, *flags)
