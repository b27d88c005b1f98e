"""Skips tests of features that the tested version of Kubernetes does not have by default."""

from __future__ import annotations

import pytest

from app.devcluster.binaries import Tools

EXTENDED_SINCE = 36


def require_extended_resources(tools: Tools) -> None:
    """Skip the test if the API server drops the fields of DRAExtendedResource.

    These are `extendedResourceName` of a DeviceClass and `extendedResourceClaimStatus` of a pod.
    """
    if tools.kubernetes.number < EXTENDED_SINCE:
        pytest.skip(f"DRAExtendedResource is on by default from Kubernetes 1.{EXTENDED_SINCE} on")
