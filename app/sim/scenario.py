"""A scenario file: a cluster, its tenants, what they submit, and until when. Read, and refused.

Nothing is guessed. Everything that makes no sense is told at once, each with its line and path.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, Resource, Tenant
from app.core.policy import Policy, Reclaim
from app.core.resources import ManagedResources
from app.sim import readers
from app.sim.policy_fields import FIELDS
from app.sim.scenario_cluster import Cluster, ClusterReader
from app.sim.scenario_tenants import TenantsReader
from app.sim.scenario_works import WorksReader
from app.sim.sheet import Record, Spot, open_sheet
from app.sim.work import Work

STANDARD_INPUT = "-"

_FIELDS = ("policy", "managed", "pools", "nodes", "tenants", "workloads", "until")

QUIET = Policy(reclaim=Reclaim.OFF, min_runtime=Millis(0))
"""The policy of a scenario that writes none; not that of a cluster."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is to be simulated. Workloads arrive in the order written."""

    name: str
    policy: Policy
    cluster: Cluster
    managed: ManagedResources
    tenants: tuple[Tenant, ...]
    works: tuple[Work, ...]
    until: Millis

    @property
    def capacity(self) -> Amounts:
        """What all pools offer together."""
        return self.cluster.capacity

    @property
    def counted(self) -> Amounts:
        """What of it shares are about, and so the figures."""
        counted = self.cluster.counted(self.managed)
        return {r: v for r, v in self.capacity.items() if r in counted}

    @property
    def device(self) -> Resource | None:
        """The first of those that is a device, in the order written."""
        return next((r for r in self.counted if "/" in r), None)


def load(path: str) -> Scenario:
    """Read a scenario from a file, or from standard input if the path is `-`.

    Raises InvalidInput if it cannot be read or makes no sense.
    """
    if path == STANDARD_INPUT:
        return parse(_decode(sys.stdin.buffer.read(), "standard input"), "standard input")
    try:
        written = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise InvalidInput(
            f"there is no file {path}; write the path of a scenario, or - for standard input."
        ) from error
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidInput(f"{path} cannot be read ({why}); write another path.") from error
    return parse(_decode(written, path), path)


def parse(text: str, name: str) -> Scenario:
    """Read a scenario from text; `name` is what mistakes call it. Raises InvalidInput."""
    spot = open_sheet(text, name)
    document = spot.record(_FIELDS, ("tenants", "workloads", "until"))
    cluster = ClusterReader(document).read()
    managed = _managed(document, cluster)
    tenants = TenantsReader(document, cluster.offers, cluster.counted(managed)).read()
    works = WorksReader(document, cluster, managed, tenants).read()
    policy = _policy(document.fields["policy"]) if "policy" in document else QUIET
    until = document.read("until", readers.duration, Millis(0))
    spot.sheet.close()
    return Scenario(name, policy, cluster, managed, tenants, works, until)


def _policy(spot: Spot) -> Policy:
    record = spot.record(tuple(FIELDS))
    values: dict[str, Any] = {
        attribute: record.read(field, reader, getattr(QUIET, attribute))
        for field, (attribute, reader) in FIELDS.items()
    }
    return replace(QUIET, **values)


def _managed(document: Record, cluster: Cluster) -> ManagedResources:
    """Return which resources are managed: every one of any capacity, unless it is written."""
    every = ManagedResources(sorted(cluster.capacity))
    if "managed" not in document:
        return every
    field, patterns = document.fields["managed"], []
    before = field.sheet.mistakes
    for spot in field.items():
        pattern = spot.read(readers.pattern, "")
        known = ManagedResources([pattern])
        if pattern and cluster.offers and not any(r in known for r in cluster.capacity):
            hint = readers.nearest(pattern, cluster.capacity)
            spot.wrong(f"no pool has {pattern}{hint}; write a resource of some capacity.")
        patterns.append(pattern)
    if field.sheet.mistakes > before:
        return every  # so that nothing else seems wrong because of this
    if not patterns:
        field.wrong("no resource is named; write one, or leave managed out.")
    return ManagedResources(patterns) if patterns else every


def _decode(written: bytes, name: str) -> str:
    try:
        return written.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = written[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{name}:{line}: this is not UTF-8 text; save it as such.") from error
