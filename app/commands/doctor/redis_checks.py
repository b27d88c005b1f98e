"""The size that Redis needs, and checks of a Redis server. Pure functions.

docs/operations.md has the sizes, and how they were measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from app.commands.doctor.findings import Check, Finding, count, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot

POD_BYTES = 1150
"""One held pod: an entry of a queue, twice during a rewrite, and an audit marker."""

RECORD_BYTES = 385
"""One usage record."""

RECORDS = 250_000
"""The default of the chart's `usage.runs`."""

AUDIT_MEGABYTES = 256
"""The default of the chart's `audit.megabytes`."""

MEGABYTE = 1_000_000
OLDEST = (6, 2)


@dataclass(frozen=True, slots=True)
class RedisServer:
    """Facts about a Redis server. `maxmemory` is in bytes, 0 without a limit."""

    version: str
    maxmemory: int
    policy: str


def needed_megabytes(pods: int) -> tuple[int, int, int]:
    """Return the memory for pods, usage records and the audit chain, in megabytes."""
    of_pods = -(-pods * POD_BYTES // MEGABYTE)
    return of_pods, RECORDS * RECORD_BYTES // MEGABYTE, AUDIT_MEGABYTES


def maxmemory_megabytes(pods: int) -> int:
    """Return the `maxmemory` to set: the audit chain uses at most half of it."""
    return max(2 * AUDIT_MEGABYTES, sum(needed_megabytes(pods)))


def check_size(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Report the memory that Redis needs for the pods of this cluster. No server is contacted."""
    if not seen.is_known("pods"):
        return
    pods = sum(each.pods for each in seen.workloads if each.requests_devices)
    of_pods, usage, audit = needed_megabytes(pods)
    yield ok(
        Check.REDIS,
        f"Redis needs about {of_pods + usage + audit} MB: {of_pods} MB for {count(pods, 'pod')} "
        f"with devices, {usage} MB for usage records, {audit} MB for the audit chain; set "
        f"maxmemory to {maxmemory_megabytes(pods)} MB or more.",
    )


def check_server(server: RedisServer, host: str, pods: int) -> Iterator[Finding]:
    """Check a server that answered."""
    numbers = tuple(int(part) for part in server.version.split(".")[:2] if part.isdecimal())
    limit, needed = server.maxmemory // MEGABYTE, maxmemory_megabytes(pods)
    if numbers < OLDEST:
        yield problem(
            Check.REDIS,
            f"Redis at {host} has version {server.version}.",
            "Use 6.2 or newer.",
        )
    if server.policy.startswith("allkeys-"):
        yield problem(
            Check.REDIS,
            f"Redis at {host} evicts keys when memory runs short ({server.policy}).",
            "Set maxmemory-policy to noeviction.",
        )
    if server.maxmemory and limit < needed:
        yield warning(
            Check.REDIS,
            f"Redis at {host} has a maxmemory of {limit} MB.",
            f"Set it to {needed} MB or more, or lower audit.megabytes and usage.runs.",
        )
    elif numbers >= OLDEST and not server.policy.startswith("allkeys-"):
        yield ok(Check.REDIS, f"Redis {server.version} at {host} answers this machine.")
