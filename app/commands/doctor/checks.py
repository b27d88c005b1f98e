"""All checks of `fairgate doctor`, in the order of their findings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from app.commands.doctor.cluster_checks import (
    check_kubernetes,
    check_priorities,
    check_quotas,
    check_schedulers,
)
from app.commands.doctor.component_checks import check_components
from app.commands.doctor.device_checks import check_device_classes, check_devices
from app.commands.doctor.findings import Check, Finding, problem, warning
from app.commands.doctor.installation_checks import check_installation
from app.commands.doctor.redis_checks import check_size
from app.commands.doctor.snapshot import MOST, ClusterSnapshot
from app.commands.doctor.values_file_checks import check_values_file
from app.commands.doctor.workload_checks import check_operators, check_pods


def run_checks(seen: ClusterSnapshot, namespace: str, now: datetime) -> list[Finding]:
    """Return all findings about a cluster. `now` is an aware datetime."""
    return [
        *_incomplete(seen),
        *check_kubernetes(seen),
        *check_schedulers(seen),
        *check_pods(seen),
        *check_operators(seen),
        *check_devices(seen),
        *check_device_classes(seen),
        *check_priorities(seen),
        *check_quotas(seen, namespace),
        *check_components(seen, now),
        *check_installation(seen, now),
        *check_values_file(seen, namespace),
        *check_size(seen),
    ]


def _incomplete(seen: ClusterSnapshot) -> Iterator[Finding]:
    custom = {each.name for each in seen.kinds}
    for verb, resource in sorted({(each.verb, each.resource) for each in seen.unreadable}):
        # The pods of custom resources are checked, even if their templates are not. Few people may
        # read Secrets.
        make = warning if resource in {*custom, "secrets"} else problem
        yield make(
            Check.RIGHTS,
            f"the caller may not {verb} {resource}, so the checks that need them are left out.",
            f"Grant the verb {verb} on {resource} (docs/examples/doctor-role.yaml).",
            [resource],
        )
    for name, why in sorted(seen.failed_lists.items()):
        yield warning(
            Check.RIGHTS,
            f"{name} cannot be listed, so only its pods are checked: {why}",
            "Repair the conversion webhook of the kind.",
            [name],
        )
    for resource in sorted(set(seen.truncated)):
        yield warning(
            Check.RIGHTS,
            f"only the first {MOST} {resource} were read.",
            "Check the rest in mode Observe.",
            [resource],
        )
