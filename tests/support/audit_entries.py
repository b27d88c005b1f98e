"""Reads audit entries of a cluster."""

from __future__ import annotations

import json
from typing import Any

from tests.support.audit_checks import audit
from tests.support.cluster_driver import Stage


def entries(stage: Stage) -> list[dict[str, Any]]:
    lines = map(json.loads, audit(stage.cluster, "export").stdout.splitlines())
    return [each for each in lines if "number" in each]
