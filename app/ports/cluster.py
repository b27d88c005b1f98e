"""Ports of the Kubernetes cluster: release, adopt and evict pods, events, status, Secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from app.core.admission.submitters import OwnerRef
from app.core.effects import (
    Adopt,
    ClaimAddress,
    EmitEvent,
    GiveReclaimNotice,
    PodRef,
    Release,
    WithdrawReclaimNotice,
)
from app.core.events import ClusterEvent
from app.core.fairshare.checkpoint import TenantCheckpoint
from app.core.model import Millis, ReleaseOutcome, TenantName, Uid, UserName


class EventSink(Protocol):
    """Receives the events of the watches. Awaiting `put` applies back-pressure."""

    async def put(self, event: ClusterEvent, /) -> None: ...


class Releaser(Protocol):
    """Releases pods through the API server."""

    async def release(self, order: Release) -> ReleaseOutcome | None:
        """Send the release patch and return its result.

        Returns None if the result cannot be determined yet. Then call `read_outcome` until it
        can be.
        """

    async def read_outcome(self, order: Release) -> ReleaseOutcome | None:
        """Read the pod and return the result of an earlier release, or None if there was no answer.

        Raises PodUnyielding if only a patch could show the result, and patches of the pod do not
        succeed.
        """

    async def fence(self, ref: PodRef, epoch: int) -> ReleaseOutcome:
        """Make every release patch of an older epoch fail on this pod, if the pod is still held.

        Returns the result of the older releases. Raises PodUnyielding as `read_outcome` does, or
        another ClusterError.
        """


class Adopter(Protocol):
    """Adopts pods that are older than the installation. May raise ClusterError."""

    async def adopt(self, order: Adopt) -> None:
        """Write annotation and labels on the pod with this uid. A deleted pod is no error."""


class ClaimProtector(Protocol):
    """Adds Fairgate's finalizer to resource claims and removes it. May raise ClusterError."""

    async def protect(self, ref: ClaimAddress) -> None:
        """Add the finalizer to the claim with this uid."""

    async def unprotect(self, ref: ClaimAddress, version: str) -> None:
        """Remove the finalizer if the claim is still at `version`. A deleted claim is no error."""


class Evictor(Protocol):
    """Evicts pods, subject to their PodDisruptionBudgets. May raise ClusterError."""

    async def evict(self, ref: PodRef) -> bool:
        """Evict the pod with this uid. True: it terminates or is gone. False: it stays for now."""

    async def delete(self, ref: PodRef) -> None:
        """Delete the pod with this uid, with a short grace period, regardless of budgets."""

    async def find_unevictable(self, refs: Sequence[PodRef]) -> Mapping[Uid, str]:
        """Return the pods that would stay if all `refs` were evicted now, each with the reason.

        The check evicts no pod.
        """


class ReclaimNotifier(Protocol):
    """Writes and removes the notice of a reclaim on a pod. May raise ClusterError."""

    async def give_notice(self, order: GiveReclaimNotice) -> None:
        """Write the notice on the pod with this uid. A deleted pod is no error."""

    async def withdraw_notice(self, order: WithdrawReclaimNotice) -> None:
        """Remove the notice of the pod with this uid. A deleted pod is no error."""


class OwnerLookup(Protocol):
    """Looks up the controllers of pods. May raise ClusterError."""

    async def find_missing_owner(self, namespace: str, name: str, uid: str) -> str:
        """Return the missing controller of this very pod. Empty string: not missing or unknown."""


class SubmitterLookup(Protocol):
    """Finds submitters by owner references. May raise ClusterError."""

    async def submitter_of(self, namespace: str, owner: OwnerRef) -> UserName | None:
        """Return the submitter in the stamps of an owner; None if it has none."""


class DeviceUse(Protocol):
    """Measures how busy devices were. May raise ClusterError."""

    async def read_peak_device_use(self, seconds: int) -> Mapping[tuple[str, str], float]:
        """Return each pod's use of its busiest device as a fraction of the last `seconds` seconds.

        Keys are (namespace, name), values are from 0 to 1. Pods that were not measured are left
        out.
        """


class InstallRecord(Protocol):
    """Install time of Fairgate in this cluster. May raise ClusterError."""

    async def ensure_install_time(self, now: Millis) -> Millis:
        """Return the install time. If it is unknown, store `now` for good and return it."""


class CheckpointStore(Protocol):
    """Stores checkpoints outside Redis, so that they survive its loss. May raise ClusterError."""

    async def store_checkpoint(self, name: TenantName, checkpoint: TenantCheckpoint) -> None:
        """Replace the checkpoint in the Tenant object. A deleted Tenant is no error."""

    async def store_other_checkpoints(
        self, checkpoints: Mapping[TenantName, TenantCheckpoint]
    ) -> None:
        """Replace the checkpoints of all tenants without a Tenant object together."""

    async def read_other_checkpoints(self) -> Mapping[TenantName, TenantCheckpoint]:
        """Return the checkpoints that `store_other_checkpoints` stored."""


class WatchSync(Protocol):
    """Synchronisation with the watches of the cluster."""

    async def catch_up(self) -> None:
        """Return after the sink received every change that happened before this call."""


class EventEmitter(Protocol):
    """Emits Kubernetes events for people. Never blocks, may drop events."""

    def emit(self, notice: EmitEvent) -> None: ...


class StoredCondition(NamedTuple):
    """The value of a stored condition, its last transition, and the uid of its object."""

    uid: str
    holds: bool
    since: Millis


class StoredStatus(NamedTuple):
    """The conditions and map keys in the status of all objects of one kind.

    `conditions`: by object and type. `keys`: of each field that is a map, by object and field.
    """

    conditions: Mapping[tuple[str, str], StoredCondition]
    keys: Mapping[tuple[str, str], frozenset[str]]


class StatusWriter(Protocol):
    """Writes the status of Tenant and Pool resources."""

    async def read_status(self, kind: str) -> StoredStatus:
        """Return what all objects of a kind have in their status. Raises ClusterError.

        `kind` is `tenants` or `pools`.
        """

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        """Merge `status` into the status of the object. `kind` is `tenants` or `pools`.

        None removes a field, or a key of a map. Other keys of a map stay.
        """


@dataclass(frozen=True, slots=True, repr=False)
class SecretData:
    """Contents of a Secret, never printed. `ours` is True if Fairgate created the Secret."""

    data: Mapping[str, bytes]
    version: str
    ours: bool


class Secrets(Protocol):
    """Stores certificates in Secrets between starts. May raise ClusterError."""

    async def read_secret(self, namespace: str, name: str) -> SecretData | None:
        """Return the Secret, or None if it does not exist."""

    async def create_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], kind: str = "Opaque"
    ) -> bool:
        """Create the Secret. Return False if it exists already."""

    async def replace_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], version: str
    ) -> bool:
        """Replace the contents if the Secret is still at `version`. Return False if it is not."""
