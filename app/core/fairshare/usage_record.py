"""Usage records: what one pod used of one pool, from when to when. All usage reports sum these.

A new record starts when the amounts, the user or the pool of a pod change. A release that failed
leaves no record.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model import Amounts, Millis, NodeName, PoolName, TenantName, Uid, UserName

NO_NODE = NodeName("")


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """The usage of a pod from `begin` to `end` in base units. `end` None: it continues.

    `node`: its node since `bound`; the node is unknown before that. `workload`: the gang, the top
    owner, or the pod itself, within the namespace. `assumed`: the end was not observed.
    """

    uid: Uid
    namespace: str
    pod: str
    workload: str
    tenant: TenantName
    user: UserName
    pool: PoolName
    amounts: Amounts
    begin: Millis
    node: NodeName = NO_NODE
    bound: Millis | None = None
    end: Millis | None = None
    assumed: bool = False

    @property
    def id(self) -> tuple[Uid, Millis]:
        """Return the unique id of the record."""
        return self.uid, self.begin

    @property
    def account_and_workload(self) -> tuple[TenantName, UserName, PoolName, str]:
        """Return the account of the record and its workload."""
        return self.tenant, self.user, self.pool, self.workload


@dataclass(frozen=True, slots=True)
class UsageStarted:
    """Store an open record. A later record of the same pod ends it."""

    record: UsageRecord


@dataclass(frozen=True, slots=True)
class UsageEnded:
    """Store a record that has ended. The first stored value is final."""

    record: UsageRecord
