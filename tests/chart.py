"""The chart as the tests handle it: rendered by helm, its objects made by kubectl."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from app.dev.cluster import Cluster
from app.dev.fairgate import CHART
from app.dev.tools import Tools

Object = dict[str, Any]

ROLES = ("webhook", "controller", "api")
ASKED = "chart-asked"
"""A namespace about whose GPU pods the webhook is asked."""

RESTRICTED = "chart-restricted"
"""A namespace that takes only pods of the restricted Pod Security Standard."""


class Chart:
    """Renders the chart. `home` is where helm may keep its cache."""

    def __init__(self, tools: Tools, home: Path) -> None:
        self._helm = str(tools.helm)
        self._home = str(home)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run helm with these arguments and return what became of it."""
        return subprocess.run(
            [self._helm, *args],
            env={"PATH": os.defpath, "HOME": self._home},
            capture_output=True,
            text=True,
            check=False,
        )

    def template(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Render it; `a.b=c` is a value, `--x=y` a flag of helm."""
        flags = [part for a in args for part in ((a,) if a.startswith("--") else ("--set", a))]
        where = ["template", "fairgate", str(CHART), "--namespace", "fairgate-system"]
        return self.run(*where, *flags)

    def render(self, *args: str) -> list[Object]:
        """Return the documents of `template`."""
        done = self.template(*args)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


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


def make(cluster: Cluster, api: str, kind: str, name: str, fields: Object, *flags: str) -> Object:
    """Create an object and return it as the API server stored it. Raises ClusterError."""
    document = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, **fields}
    said = cluster.kubectl("create", *flags, "-o", "json", "-f", "-", stdin=json.dumps(document))
    made: Object = json.loads(said)
    return made


def make_ours(cluster: Cluster, kind: str, name: str, spec: Object, *flags: str) -> Object:
    """Create a Tenant, Pool or Policy."""
    return make(cluster, "fairgate.io/v1alpha1", kind, name, {"spec": spec}, *flags)
