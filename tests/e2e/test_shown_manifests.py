"""A real API server accepts the manifests of the pages and the examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cluster_driver import Stage

ROOT = Path(__file__).parents[2]
FILES = {"AdmissionConfiguration", "Config", "KubeSchedulerConfiguration"}
"""Kinds that programs read from files."""


def shown() -> dict[str, list[dict[str, Any]]]:
    """Return the objects of each manifest in a page or example, by its place."""
    texts = {path.name: path.read_text() for path in (ROOT / "docs" / "examples").glob("*.yaml")}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        blocks = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S)
        texts |= {f"{page.name} {number}": block for number, block in enumerate(blocks)}
    manifests = {place: list(yaml.safe_load_all(text)) for place, text in sorted(texts.items())}
    return {
        place: objects
        for place, objects in manifests.items()
        if all("kind" in each and each["kind"] not in FILES for each in objects)
    }


SHOWN = shown()
assert len(SHOWN) > 12, "pages and examples show manifests"


@pytest.mark.parametrize("place", SHOWN)
def test_api_server_accepts_the_documented_manifests(stage: Stage, place: str) -> None:
    ours = stage.namespace("shown")
    for each in SHOWN[place]:
        if "namespace" in each["metadata"]:
            each["metadata"]["namespace"] = ours
        if each["kind"] == "Namespace":  # another test may have created it
            each["metadata"]["name"] += "-shown"
    text = yaml.safe_dump_all(SHOWN[place])
    said = stage.cluster.kubectl("create", "--dry-run=server", "-n", ours, "-f", "-", stdin=text)
    assert said.count("(server dry run)") == len(SHOWN[place])
