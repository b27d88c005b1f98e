"""Location of the logs of real clusters: `../shared/traces` next to the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"


def log_file(name: str) -> Path:
    """Return the path of a log.

    If missing, skip the test, or fail if REQUIRE_CLUSTER or CI is set.
    """
    path = TRACES / name
    if path.is_file():
        return path
    sentence = f"The log {name} is not there: put the cluster logs into {TRACES}."
    if any(os.environ.get(flag, "") not in ("", "0") for flag in ("REQUIRE_CLUSTER", "CI")):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)
