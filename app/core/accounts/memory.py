"""Takes checkpoints of tenants, and takes up those of another leader.

Of the time since a checkpoint was taken, pods that use something now count from their start on;
what has ended meanwhile counts no longer than until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from operator import itemgetter

from app.core.fair.branch import Branch, Leaf, leaves
from app.core.fair.checkpoint import ELSEWHERE, OTHERS, Checkpoint, Kept, bounded, worth_keeping
from app.core.fair.order import NEVER
from app.core.fair.tenancy import Tenancy
from app.core.fair.usage import ITSELF, Past
from app.core.model import Amounts, Millis, PoolName, TenantName, UserName
from app.core.pods.roster import Roster
from app.core.resources import ManagedResources

_Version = tuple[int, Millis]
"""Epoch and time of a checkpoint: of two, the higher knows more."""

_NO_VERSION: _Version = (0, Millis(-1))

_NEVER_KEPT = Millis(-1)

_UNKNOWN = Checkpoint(_NEVER_KEPT, 0), _NEVER_KEPT


class Memory:
    """See the module. `hear`, then `restore` once everything else is up to date."""

    def __init__(self, roster: Roster, tenancy: Tenancy, managed: ManagedResources) -> None:
        self._roster = roster
        self._usage = roster.usage
        self._began = False
        self._tenancy = tenancy
        self._epoch: int | None = None
        self._managed = managed
        self._floor = _NO_VERSION
        self._taken: dict[TenantName, _Version] = {}
        self._due: dict[TenantName, tuple[Checkpoint, Millis]] = {}
        self._overwritten: set[TenantName] = set()

    @property
    def leads(self) -> bool:
        """Whether what is known here is to be kept."""
        return self._epoch is not None

    def epochs(self) -> Iterator[int]:
        """Return the epochs of the checkpoints that were heard."""
        return (epoch for epoch, _ in self._taken.values())

    def hear(self, name: TenantName, checkpoint: Checkpoint, *, live: bool) -> None:
        """A checkpoint was found. `live`: it was written just now, whatever the clocks say.

        A leader knows better, and takes up none; but if an older one has written, it notes that.
        """
        version = (checkpoint.epoch, checkpoint.at)
        if self._epoch is not None and checkpoint.epoch < self._epoch:
            self._overwritten.add(name)
        if self._epoch is not None or version <= self._taken.get(name, self._floor):
            return
        self._taken[name] = version
        now = self._usage.now
        self._due[name] = checkpoint, now if live else min(checkpoint.at, now)

    def lead(self, epoch: int) -> None:
        """What this engine knows counts from now on."""
        self._epoch = epoch
        self._overwritten.clear()

    def take_overwritten(self) -> set[TenantName]:
        """Return, once, the tenants that hold a checkpoint of a leader before this one."""
        found, self._overwritten = self._overwritten, set()
        return found

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
        first, self._began = not self._began, True
        if first:
            for name in self._usage.tree.tenants:
                self._due.setdefault(name, _UNKNOWN)
        if not first and ELSEWHERE in self._due:
            _, since = self._due[ELSEWHERE]
            for name in self.names() - self._due.keys():
                if not self.has_object(name):
                    self._forget_spent(name, frozenset(), since)
        for name, (checkpoint, since) in self._due.items():
            self._restore(name, checkpoint, since, first)
        self._due.clear()

    def names(self) -> set[TenantName]:
        """Return every tenant of which there is anything to keep."""
        usage = self._usage
        return {*usage.tree.tenants, *usage.past, *usage.ledger.tenants()}

    def has_object(self, name: TenantName) -> bool:
        """Tell whether there is a Tenant resource of that name."""
        return name in self._tenancy.tenants

    def repeats(self, checkpoint: Checkpoint, before: Checkpoint) -> bool:
        """Tell whether a checkpoint follows from an earlier one by time alone."""
        return checkpoint.repeats(before, self._usage.policy.half_life)

    def take(self, name: TenantName) -> Checkpoint:
        """Return the checkpoint of a tenant, as of now. Only while leading."""
        assert self._epoch is not None
        usage = self._usage
        found = {user: self._of_past(past) for user, past in usage.past.get(name, {}).items()}
        branch = usage.tree.tenants.get(name)
        if branch is not None:
            found[ITSELF] = Kept(branch.served, worth_keeping(usage.tree.history(branch)))
            for leaf in branch.children.values():
                if isinstance(leaf, Leaf):
                    past = worth_keeping(usage.tree.history(leaf))
                    found[UserName(leaf.name)] = Kept(leaf.served, past)
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.ledger.of(name, usage.now):
            if managed := {r: v for r, v in amounts.items() if v and r in self._managed}:
                spent.setdefault(user, {})[pool] = managed
        users: dict[UserName, Kept] = {}
        for user in {*found, *spent}:
            seen = found.get(user, Kept())
            users[user] = Kept(seen.served, seen.history, spent.get(user, {}))
        own = users.pop(ITSELF, Kept())  # with the totals of OTHERS, which is the same name
        worthy = {u: k for u, k in users.items() if k.history or k.spent or k.served > NEVER}
        checkpoint = bounded(usage.now, self._epoch, own, worthy)
        self._fold(name, {user for user in worthy if user not in checkpoint.users})
        return checkpoint

    def _fold(self, name: TenantName, users: set[UserName]) -> None:
        """Let those go whom the checkpoint does not name: the next leader would not know them."""
        if not users:
            return
        usage = self._usage
        usage.ledger.fold(usage.now, name, users)
        for user in users & usage.past.get(name, {}).keys():
            if usage.tree.find(name, user) is None:
                del usage.past[name][user]

    def _of_past(self, past: Past) -> Kept:
        faded = past.faded(self._usage.now, self._usage.policy.half_life)
        return Kept(past.served, worth_keeping(faded))

    def _restore(
        self, name: TenantName, checkpoint: Checkpoint, since: Millis, first: bool
    ) -> None:
        """Let a tenant and its users remember; at `first` also those that are not named."""
        usage, named = self._usage, dict(checkpoint.users)
        branch = usage.tree.tenants.get(name)
        if branch is not None and first:
            new = {UserName(each.name) for each in branch.children.values() if _is_user(each)}
            named |= dict.fromkeys(new - named.keys(), Kept())
        if name != ELSEWHERE:
            usage.recall(name, ITSELF, self._brought_up(branch, checkpoint.own, since))
        self._spend(name, OTHERS, checkpoint.own, None, since)
        for user, kept in named.items():
            leaf = usage.tree.find(name, user)
            usage.recall(name, user, self._brought_up(leaf, kept, since))
            self._spend(name, user, kept, leaf, since)
        if not first:
            self._forget_spent(name, {OTHERS, *named}, since)

    def _forget_spent(self, name: TenantName, named: Set[UserName], since: Millis) -> None:
        """Whom a checkpoint does not name, it has summed up: what was known here counts there.

        What their pods use since then is not in it.
        """
        usage, branch = self._usage, self._usage.tree.tenants.get(name)
        others = {UserName(each.name): each for each in branch.children.values()} if branch else {}
        usage.ledger.forget_spent(usage.now, name, named)
        for user, leaf in others.items():
            if isinstance(leaf, Leaf) and user not in named:
                self._spend(name, user, Kept(), leaf, since)

    def _spend(
        self, name: TenantName, user: UserName, kept: Kept, leaf: Leaf | None, since: Millis
    ) -> None:
        """Let a user have spent what is kept, and what its pods have used since."""
        now = self._usage.now
        totals = {pool: dict(amounts) for pool, amounts in kept.spent.items()}
        for start, pool, demand in self._uses(leaf, since) if leaf is not None else ():
            amounts = totals.setdefault(pool, {})
            for r in filter(self._managed.__contains__, demand):
                amounts[r] = amounts.get(r, 0) + demand[r] * (now - start)
        for pool, spent in totals.items():
            self._usage.ledger.restore(now, (name, user, pool), spent)

    def _brought_up(self, branch: Branch | None, kept: Kept, since: Millis) -> Past:
        """Return what a branch remembers if its pods came since, each when it started."""
        if branch is None or since >= self._usage.now:
            return Past(kept.served, kept.history, since)
        tree = self._usage.tree
        then = Branch(branch.name, None, branch.weight, {})
        then.guarantees = branch.guarantees
        then.recall(kept.served, kept.history, since)
        uses = [use for leaf in _users(branch) for use in self._uses(leaf, since)]
        for start, pool, demand in sorted(uses, key=itemgetter(0)):
            then.history, then.remembered = tree.history(then, start), start
            then.use(pool, tree.scale.cost(pool, demand), 1)
        return Past(kept.served, then.history, then.remembered)

    def _uses(self, leaf: Leaf, since: Millis) -> Iterator[tuple[Millis, PoolName, Amounts]]:
        """Return what a user's pods use, and from when on each is still to be charged."""
        now = self._usage.now
        for tracked in self._roster.running.get(leaf, {}).values():
            start = tracked.pod.started or tracked.released or now
            if since == _NEVER_KEPT and tracked.stamp == NEVER:
                start = now  # it was there before us: what it used then is nobody's business
            if tracked.pool is not None:
                yield Millis(max(since, min(start, now))), tracked.pool, tracked.pod.demand


def _is_user(branch: Branch) -> bool:
    return isinstance(branch, Leaf)


def _users(branch: Branch) -> Iterable[Leaf]:
    return [branch] if isinstance(branch, Leaf) else leaves(branch)
