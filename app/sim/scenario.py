"""A scenario file: a cluster, its tenants, what they submit, and until when. Read, and refused.

Nothing is guessed. Everything that makes no sense is told at once, each with its line and path.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, Resource, Tenant
from app.core.policy import Policy, Reclaim, WithinQueue
from app.core.resources import ManagedResources, add
from app.sim import readers
from app.sim.scenario_cluster import Cluster, ClusterReader
from app.sim.scenario_tenants import TenantsReader
from app.sim.scenario_works import WorksReader
from app.sim.sheet import Spot, open_sheet
from app.sim.work import Work

STANDARD_INPUT = "-"

_FIELDS = ("policy", "pools", "nodes", "tenants", "workloads", "until")
_POLICY_FIELDS = (
    "history",
    "halfLife",
    "minCharge",
    "reserveAfter",
    "backfill",
    "reclaim",
    "withinQueue",
    "minRuntime",
)

QUIET = Policy(reclaim=Reclaim.OFF, min_runtime=Millis(0))
"""The policy of a scenario that writes none; not that of a cluster."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is to be simulated. Workloads arrive in the order written."""

    name: str
    policy: Policy
    cluster: Cluster
    tenants: tuple[Tenant, ...]
    works: tuple[Work, ...]
    until: Millis

    @property
    def capacity(self) -> Amounts:
        """What all pools offer together."""
        total: dict[Resource, int] = {}
        for offered in self.cluster.offers.values():
            total = add(total, offered)
        return total

    @property
    def managed(self) -> ManagedResources:
        """Every resource of any capacity."""
        return ManagedResources(sorted(self.capacity))

    @property
    def device(self) -> Resource | None:
        """The first resource that is a device, in the order written."""
        return next((r for r in self.capacity if "/" in r), None)


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
    tenants = TenantsReader(document, cluster.offers).read()
    works = WorksReader(document, cluster, tenants).read()
    policy = _policy(document.fields["policy"]) if "policy" in document else QUIET
    until = document.read("until", readers.duration, Millis(0))
    spot.sheet.close()
    return Scenario(name, policy, cluster, tenants, works, until)


def _policy(spot: Spot) -> Policy:
    record = spot.record(_POLICY_FIELDS)
    return Policy(
        history=record.read("history", readers.decimal, QUIET.history),
        half_life=record.read("halfLife", readers.some_time, QUIET.half_life),
        min_charge=record.read("minCharge", readers.duration, QUIET.min_charge),
        reserve_after=record.read("reserveAfter", readers.duration, QUIET.reserve_after),
        backfill=record.read("backfill", readers.switch, QUIET.backfill),
        reclaim=record.read("reclaim", _reclaim, QUIET.reclaim),
        within_queue=record.read("withinQueue", readers.choice(WithinQueue), QUIET.within_queue),
        min_runtime=record.read("minRuntime", readers.duration, QUIET.min_runtime),
    )


def _reclaim(text: str) -> Reclaim:
    """A bare off is a boolean to YAML, and some programs write it out again as false."""
    if text.lower() in ("off", "false"):
        return Reclaim.OFF
    return readers.choice(Reclaim)(text)


def _decode(written: bytes, name: str) -> str:
    try:
        return written.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = written[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{name}:{line}: this is not UTF-8 text; save it as such.") from error
