"""Where the logs of real clusters are: beside the project, in `../shared/traces`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACES = ROOT.parent / "shared" / "traces"


def log_file(name: str) -> Path:
    """Return a log; skips where there is none, or fails if everything must be tested."""
    path = TRACES / name
    if path.is_file():
        return path
    sentence = f"The log {name} is not there: put the cluster logs into {TRACES}."
    if any(os.environ.get(flag, "") not in ("", "0") for flag in ("REQUIRE_CLUSTER", "CI")):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)
