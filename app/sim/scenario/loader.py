"""Loads a scenario file: a cluster, its tenants, their workloads and the end time.

Invalid values are not guessed. All mistakes are reported together, each with its line and path.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, Resource, Tenant
from app.core.policy import Policy, Reclaim
from app.core.quantities import ManagedResources
from app.sim.cluster.workload import SimulatedWorkload
from app.sim.scenario import value_parsers
from app.sim.scenario.policy_fields import FIELDS
from app.sim.scenario.scenario_cluster import ClusterReader, ScenarioCluster
from app.sim.scenario.tenants import TenantsReader
from app.sim.scenario.workloads import WorksReader
from app.sim.scenario.yaml_document import YamlMap, YamlValue, parse_yaml

STANDARD_INPUT = "-"

_FIELDS = ("policy", "managed", "pools", "nodes", "tenants", "workloads", "until")

DEFAULT_POLICY = Policy(reclaim=Reclaim.OFF, min_runtime=Millis(0))
"""The policy of a scenario without `policy`. A cluster has another default."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A valid scenario. Workloads are in the order of the file."""

    name: str
    policy: Policy
    cluster: ScenarioCluster
    managed: ManagedResources
    tenants: tuple[Tenant, ...]
    works: tuple[SimulatedWorkload, ...]
    until: Millis

    @property
    def capacity(self) -> Amounts:
        """Capacity of all pools together."""
        return self.cluster.capacity

    @property
    def counted(self) -> Amounts:
        """Capacity of the resources that shares and figures count."""
        counted = self.cluster.counted(self.managed)
        return {r: v for r, v in self.capacity.items() if r in counted}

    @property
    def device(self) -> Resource | None:
        """The first counted resource that is a device; None if there is no device."""
        return next((r for r in self.counted if "/" in r), None)


def load(path: str) -> Scenario:
    """Read a scenario from a file, or from standard input if the path is `-`.

    Raises InvalidInput if it cannot be read or is invalid.
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
    """Read a scenario from text; error messages start with `name`. Raises InvalidInput."""
    spot = parse_yaml(text, name)
    document = spot.read_map(_FIELDS, ("tenants", "workloads", "until"))
    cluster = ClusterReader(document).read()
    managed = _managed(document, cluster)
    tenants = TenantsReader(document, cluster.offers, cluster.counted(managed)).read()
    works = WorksReader(document, cluster, managed, tenants).read()
    policy = _policy(document.fields["policy"]) if "policy" in document else DEFAULT_POLICY
    until = document.read("until", value_parsers.duration, Millis(0))
    spot.document.raise_mistakes()
    return Scenario(name, policy, cluster, managed, tenants, works, until)


def _policy(spot: YamlValue) -> Policy:
    record = spot.read_map(tuple(FIELDS))
    values: dict[str, Any] = {
        attribute: record.read(field, reader, getattr(DEFAULT_POLICY, attribute))
        for field, (attribute, reader) in FIELDS.items()
    }
    return replace(DEFAULT_POLICY, **values)


def _managed(document: YamlMap, cluster: ScenarioCluster) -> ManagedResources:
    """Return the managed resources; without `managed`, all resources that have a capacity."""
    every = ManagedResources(sorted(cluster.capacity))
    if "managed" not in document:
        return every
    field, patterns = document.fields["managed"], []
    before = field.document.mistake_count
    for spot in field.items():
        pattern = spot.read(value_parsers.pattern, "")
        known = ManagedResources([pattern])
        if pattern and cluster.offers and not any(r in known for r in cluster.capacity):
            hint = value_parsers.did_you_mean(pattern, cluster.capacity)
            spot.add_mistake(f"no pool has {pattern}{hint}; write a resource of some capacity.")
        patterns.append(pattern)
    if field.document.mistake_count > before:
        return every  # avoids follow-up mistakes
    if not patterns:
        field.add_mistake("no resource is named; write one, or leave managed out.")
    return ManagedResources(patterns) if patterns else every


def _decode(written: bytes, name: str) -> str:
    try:
        return written.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = written[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{name}:{line}: this is not UTF-8 text; save it as such.") from error
