"""The Kubernetes versions that the local cluster can run, and what differs between them.

Each version has a Go module in `tests/tools/kubernetes-MINOR`, which pins its programs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from app.core.errors import InvalidInput

VARIABLE: Final = "FAIRGATE_KUBERNETES"
"""Names the version of local clusters that are started without an explicit one, as in tests."""


@dataclass(frozen=True, slots=True)
class KubernetesVersion:
    """A tested version. `full` is the release that the Go module pins.

    `pod_groups` is the API version of PodGroups that Fairgate reads, or None without PodGroups.
    `composite_groups` is that of CompositePodGroups.
    """

    minor: str
    full: str
    pod_groups: str | None = None
    composite_groups: str | None = None

    @property
    def number(self) -> int:
        """The minor version as a number, such as 36."""
        return int(self.minor.partition(".")[2])

    def pod_group_flags(self) -> dict[str, str]:
        """Return the flags of an API server that offers PodGroups. Raises InvalidInput."""
        if self.pod_groups is None:
            raise InvalidInput(
                f"Kubernetes {self.minor} has no pod groups that Fairgate reads; use 1.36 or newer."
            )
        apis, gates = [self.pod_groups], ["GenericWorkload"]
        if self.composite_groups is not None:
            apis.append(self.composite_groups)
            gates += ["TopologyAwareWorkloadScheduling", "CompositePodGroup"]
        return {
            "feature-gates": ",".join(f"{gate}=true" for gate in gates),
            "runtime-config": ",".join(f"{api}=true" for api in apis),
        }


VERSIONS: Final = (
    KubernetesVersion("1.34", "1.34.4"),
    KubernetesVersion("1.35", "1.35.4"),  # Workload has another format there, and no PodGroup
    KubernetesVersion("1.36", "1.36.3", "scheduling.k8s.io/v1alpha2"),
    KubernetesVersion("1.37", "1.37.2", "scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"),
)
DEFAULT: Final = VERSIONS[2]


def named(text: str) -> KubernetesVersion:
    """Return the version named like `1.37` or `1.37.2`. Raises InvalidInput."""
    wanted = text.strip().removeprefix("v")
    for version in VERSIONS:
        if wanted in (version.minor, version.full):
            return version
    choice = ", ".join(f"{version.minor} ({version.full})" for version in VERSIONS)
    raise InvalidInput(f"Kubernetes {text!r} is not available; choose one of {choice}.")


def nearest(number: int) -> KubernetesVersion:
    """Return the tested version with this minor number; the next one if it is not tested."""
    return min(VERSIONS, key=lambda version: abs(version.number - number))


def from_environment() -> KubernetesVersion | None:
    """Return the version that `FAIRGATE_KUBERNETES` names; None if unset. Raises InvalidInput."""
    text = os.environ.get(VARIABLE, "")
    return named(text) if text.strip() else None
