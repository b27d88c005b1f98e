"""Skips tests of features that the tested version of Kubernetes does not have by default."""

from __future__ import annotations

import pytest

from app.devcluster.binaries import Tools

EXTENDED_SINCE = 36


def require_extended_resource_names(tools: Tools) -> None:
    """Skip the test if the API server drops `extendedResourceName` of a DeviceClass."""
    if tools.kubernetes.number < EXTENDED_SINCE:
        pytest.skip(f"Kubernetes 1.{EXTENDED_SINCE} keeps extendedResourceName by default")
