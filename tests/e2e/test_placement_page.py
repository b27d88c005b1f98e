"""A real API server accepts the manifests of docs/placement.md and its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.cluster_driver import Stage

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", (DOCS / "placement.md").read_text(), re.M | re.S)
assert len(BLOCKS) >= 4, "the page shows what to write"
NAMED = ("gang-in-one-rack", "gang-job", "memory-pools", "model-job")
FILES = {name: (DOCS / "examples" / f"{name}.yaml").read_text() for name in NAMED}
SHOWN = {yaml.safe_load(block)["kind"] + f" {n}": block for n, block in enumerate(BLOCKS)} | FILES


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_taken(stage: Stage, name: str) -> None:
    ours = stage.namespace("shown")
    said = stage.cluster.kubectl(
        "create", "--dry-run=server", "-n", ours, "-f", "-", stdin=SHOWN[name]
    )
    assert said.count("(server dry run)") == len(list(yaml.safe_load_all(SHOWN[name])))
