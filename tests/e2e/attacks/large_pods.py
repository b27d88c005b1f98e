"""Pods of the largest size that the bounds allow, and larger ones."""

from __future__ import annotations

from tests.contract.enforcement_cases import WITHIN as ALL_WITHIN
from tests.e2e.attacks.attack_cluster import (
    TOO_MANY,
    Object,
)
from tests.support.cluster_driver import GPU

WITHIN = {field: built for field, built in ALL_WITHIN.items() if field != "annotation"}
"""Pods at their bounds. The pools that the second pod names do not exist."""


def large(name: str, built: Object) -> Object:
    """Return a pod of `largest` with this name that fits no node."""
    made: Object = {**built, "metadata": {**built["metadata"], "name": name}}
    made["metadata"].pop("namespace")
    [first, *others] = made["spec"]["containers"]
    limits = {**first["resources"]["limits"], GPU: TOO_MANY}
    first = {**first, "resources": {"limits": limits}}
    made["spec"] = {**made["spec"], "containers": [first, *others]}
    made["spec"]["terminationGracePeriodSeconds"] = 0
    return made
