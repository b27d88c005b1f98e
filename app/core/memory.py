"""Takes checkpoints of tenants, and takes up those of another leader.

What a checkpoint does not know is how long it has been since: what is used now counts as used
since it was taken, and what has ended meanwhile counts no longer than until then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.core.branch import Leaf
from app.core.checkpoint import ELSEWHERE, NOTHING, OTHERS, Checkpoint, Kept, Totals, bounded
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName
from app.core.order import NEVER
from app.core.resources import ManagedResources
from app.core.tenancy import Tenancy
from app.core.usage import Past, Usage

_Version = tuple[int, Millis]
"""Epoch and time of a checkpoint: of two, the higher knows more."""

_NO_VERSION: _Version = (0, Millis(-1))


class Memory:
    """See the module. `hear`, then `restore` once everything else is up to date."""

    def __init__(self, usage: Usage, tenancy: Tenancy, managed: ManagedResources) -> None:
        self._usage = usage
        self._tenancy = tenancy
        self._epoch: int | None = None
        self._managed = managed
        self._floor = _NO_VERSION
        self._taken: dict[TenantName, _Version] = {}
        self._due: dict[TenantName, tuple[Checkpoint, Millis]] = {}

    @property
    def leads(self) -> bool:
        """Whether what is known here is to be kept."""
        return self._epoch is not None

    def epochs(self) -> Iterator[int]:
        """Return the epochs of the checkpoints that were heard."""
        return (epoch for epoch, _ in self._taken.values())

    def hear(self, name: TenantName, checkpoint: Checkpoint, *, live: bool) -> None:
        """A checkpoint was found. `live`: it was written just now, whatever the clocks say.

        A leader knows better, and takes up none.
        """
        version = (checkpoint.epoch, checkpoint.at)
        if self._epoch is not None or version <= self._taken.get(name, self._floor):
            return
        self._taken[name] = version
        now = self._usage.now
        self._due[name] = checkpoint, now if live else min(checkpoint.at, now)

    def lead(self, epoch: int) -> None:
        """What this engine knows counts from now on."""
        self._epoch = epoch

    def follow(self) -> None:
        """Another leader's word counts from now on; nothing as old as the own term is news."""
        if self._epoch is not None:
            self._floor = (self._epoch + 1, Millis(-1))
            self._taken.clear()
            self._epoch = None

    def forget(self, name: TenantName) -> None:
        """A tenant exists no more."""
        self._taken.pop(name, None)

    def restore(self) -> None:
        """Take up what was heard. Only after every pod has its place."""
        for name, (checkpoint, since) in self._due.items():
            self._restore(name, checkpoint, since)
        self._due.clear()

    def names(self) -> set[TenantName]:
        """Return every tenant of which there is anything to keep."""
        usage = self._usage
        return {*usage.tree.tenants, *usage.past, *usage.ledger.tenants()}

    def has_object(self, name: TenantName) -> bool:
        """Tell whether there is a Tenant resource of that name."""
        return name in self._tenancy.tenants

    def follows(self, checkpoint: Checkpoint, before: Checkpoint) -> bool:
        """Tell whether a checkpoint follows from an earlier one by time alone."""
        return checkpoint.repeats(before, self._usage.policy.half_life)

    def take(self, name: TenantName) -> Checkpoint:
        """Return the checkpoint of a tenant, as of now. Only while leading."""
        assert self._epoch is not None
        usage = self._usage
        found = {user: self._of_past(past) for user, past in usage.past.get(name, {}).items()}
        branch = usage.tree.tenants.get(name)
        if branch is not None:
            found[OTHERS] = Kept(branch.served, _worthy(usage.tree.history(branch)))
            for leaf in branch.children.values():
                if isinstance(leaf, Leaf):
                    past = _worthy(usage.tree.history(leaf))
                    found[UserName(leaf.name)] = Kept(leaf.served, past)
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.ledger.of(name, usage.now):
            if managed := {r: v for r, v in amounts.items() if v and r in self._managed}:
                spent.setdefault(user, {})[pool] = managed
        users: dict[UserName, Kept] = {}
        for user in {*found, *spent}:
            seen = found.get(user, Kept())
            users[user] = Kept(seen.served, seen.history, spent.get(user, {}))
        own = users.pop(OTHERS, Kept())
        worthy = {u: k for u, k in users.items() if k.history or k.spent or k.served > NEVER}
        return bounded(usage.now, self._epoch, own, worthy)

    def _of_past(self, past: Past) -> Kept:
        faded = past.faded(self._usage.now, self._usage.policy.half_life)
        return Kept(past.served, _worthy(faded))

    def _restore(self, name: TenantName, checkpoint: Checkpoint, since: Millis) -> None:
        usage = self._usage
        if name != ELSEWHERE:
            usage.recall(name, OTHERS, _past(checkpoint.own, since))
            for user, kept in checkpoint.users.items():
                usage.recall(name, user, _past(kept, since))
        for owner, spent in _totals(checkpoint).items():
            usage.ledger.restore(usage.now, since, (name, *owner), self._only_managed(spent))
        if usage.began is not None and since < usage.began:
            self._date_back(name, checkpoint, since)

    def _date_back(self, name: TenantName, checkpoint: Checkpoint, since: Millis) -> None:
        """What it does not name was not there: it came since, and none of us was there to see."""
        usage = self._usage
        branch = usage.tree.tenants.get(name)
        for leaf in branch.children.values() if branch is not None else ():
            if isinstance(leaf, Leaf) and leaf.name not in checkpoint.users:
                usage.recall(name, UserName(leaf.name), Past(leaf.served, {}, since))
        named = _totals(checkpoint)
        for owner, _ in usage.ledger.of(name, usage.now):
            if owner not in named:
                usage.ledger.restore(usage.now, since, (name, *owner), {})

    def _only_managed(self, amounts: Amounts) -> Amounts:
        return {r: v for r, v in amounts.items() if r in self._managed}


def _worthy(history: Mapping[Resource, float]) -> dict[Resource, float]:
    return {r: part for r, part in history.items() if part > NOTHING}


def _past(kept: Kept, since: Millis) -> Past:
    return Past(kept.served, kept.history, since)


def _totals(checkpoint: Checkpoint) -> dict[tuple[UserName, PoolName], Amounts]:
    kept: list[tuple[UserName, Totals]] = [(OTHERS, checkpoint.own.spent)]
    kept += [(user, each.spent) for user, each in checkpoint.users.items()]
    return {(user, pool): amounts for user, spent in kept for pool, amounts in spent.items()}
