"""Finds the logs of real clusters, or skips the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtest.philly import TRACES


def log_file(name: str) -> Path:
    """Return the path of a log.

    If missing, skip the test, or fail if REQUIRE_CLUSTER or CI is set.
    """
    path = TRACES / name
    if path.is_file():
        return path
    sentence = f"The log {name} is not there: set CLUSTER_LOGS to the folder of the cluster logs."
    if any(os.environ.get(flag, "") not in ("", "0") for flag in ("REQUIRE_CLUSTER", "CI")):
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)
