"""A run: what one pod used, of which pool, from when to when. The raw material of every account.

Values only. A pod has one run after another where what it uses, or whose it is, changes meanwhile.
What a release held that came to nothing is no run.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model import Amounts, Millis, NodeName, PoolName, TenantName, Uid, UserName

NO_NODE = NodeName("")


@dataclass(frozen=True, slots=True)
class Run:
    """What a pod uses from `begin` to `end` (None: it goes on), in base units.

    From `bound` on it is on `node`, before that on none that is known. `workload` is the gang, the
    top owner, or the pod itself, within the namespace. `assumed`: nobody saw the end.
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
        """Return what no other run has."""
        return self.uid, self.begin

    @property
    def whose(self) -> tuple[TenantName, UserName, PoolName, str]:
        """Return to whose account it is, and for which workload."""
        return self.tenant, self.user, self.pool, self.workload


@dataclass(frozen=True, slots=True)
class Begun:
    """Keep: this run goes on, as far as is known. A later one of the same pod ends it."""

    run: Run


@dataclass(frozen=True, slots=True)
class Ran:
    """Keep, for good: this run has ended. What was kept of it first stands."""

    run: Run
