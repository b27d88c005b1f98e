"""Takes checkpoints of tenants, and restores the checkpoints of another leader.

Usage between a checkpoint and its restore is added for pods that use capacity now, from their start
on. Usage of other pods counts only until the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from operator import itemgetter

from app.core.fairshare.checkpoint import (
    ELSEWHERE,
    MOST_USERS,
    OTHERS,
    FairnessState,
    TenantCheckpoint,
    bounded,
    by_weight,
    worth_keeping,
)
from app.core.fairshare.live_usage import ITSELF, BranchHistory
from app.core.fairshare.sort_key import NEVER
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode, leaves
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Amounts, Millis, PoolName, TenantName, UserName
from app.core.quantities import ManagedResources

_Version = tuple[int, Millis]
"""Epoch and time of a checkpoint. The higher version is the newer one."""

_NO_VERSION: _Version = (0, Millis(-1))

_NEVER_KEPT = Millis(-1)

_UNKNOWN = TenantCheckpoint(_NEVER_KEPT, 0), _NEVER_KEPT


class CheckpointKeeper:
    """Stored fairness state. Call `apply_read`, then `restore` once other state is up to date."""

    def __init__(
        self,
        registry: PodRegistry,
        tenancy: TenantDirectory,
        managed: ManagedResources,
        *,
        forgets: bool,
    ) -> None:
        """`forgets`: idle users beyond `MOST_USERS` of a tenant are summed up, see `leave`."""
        self._forgets = forgets
        self._registry = registry
        self._usage = registry.usage
        self._began = False
        self._tenancy = tenancy
        self._epoch: int | None = None
        self._managed = managed
        self._floor = _NO_VERSION
        self._taken: dict[TenantName, _Version] = {}
        self._due: dict[TenantName, tuple[TenantCheckpoint, Millis]] = {}
        self._overwritten: set[TenantName] = set()
        self._departed: dict[TenantName, int] = {}
        """Number of pods that left each tenant since its idle users were counted."""

    @property
    def leads(self) -> bool:
        """Whether this engine leads, so that its state is to be stored."""
        return self._epoch is not None

    def epochs(self) -> Iterator[int]:
        """Yield the epochs of the checkpoints that were read."""
        return (epoch for epoch, _ in self._taken.values())

    def apply_read(self, name: TenantName, checkpoint: TenantCheckpoint, *, live: bool) -> None:
        """Process a checkpoint that was read. `live`: it was just written, whatever clocks say.

        A leader does not restore it, because its own state is newer. If an older leader wrote it,
        the tenant is recorded for `take_overwritten`.
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
        """Start a leader term: the state of this engine is authoritative."""
        self._epoch = epoch
        self._overwritten.clear()

    def take_overwritten(self) -> set[TenantName]:
        """Return, once, the tenants with a checkpoint from an earlier leader."""
        found, self._overwritten = self._overwritten, set()
        return found

    def follow(self) -> None:
        """End a leader term. Checkpoints of this term or older ones are ignored from now on."""
        if self._epoch is not None:
            self._floor = (self._epoch + 1, Millis(-1))
            self._taken.clear()
            self._epoch = None

    def remove_tenant(self, name: TenantName) -> None:
        """Remove a deleted tenant."""
        self._taken.pop(name, None)

    def leave(self, name: TenantName) -> None:
        """Count a deleted pod of a tenant, and drop idle users after each `MOST_USERS` pods.

        The users with the largest history stay, as many as a checkpoint names. The others are
        summed up. Otherwise users with a single visit would fill the memory.
        """
        if not self._forgets:
            return
        departed = self._departed.pop(name, 0) + 1
        if departed < MOST_USERS:
            self._departed[name] = departed
            return
        users = self._idle(name)
        if len(users) > MOST_USERS:
            self._drop(name, by_weight(users)[MOST_USERS:])

    def restore(self) -> None:
        """Restore the checkpoints that were read. Call it only after every pod is accounted."""
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
        """Return every tenant with state to store."""
        usage = self._usage
        return {*usage.tree.tenants, *usage.past, *usage.ledger.tenants()}

    def has_object(self, name: TenantName) -> bool:
        """Return whether there is a Tenant resource of this name."""
        return name in self._tenancy.tenants

    def repeats(self, checkpoint: TenantCheckpoint, before: TenantCheckpoint) -> bool:
        """Return whether a checkpoint equals an earlier one with decay applied."""
        return checkpoint.repeats(before, self._usage.policy.half_life)

    def _idle(self, name: TenantName) -> dict[UserName, FairnessState]:
        """Return the stored state of each user of a tenant without pods and without usage."""
        usage, tree = self._usage, self._usage.tree
        branch = tree.tenants.get(name)
        busy = {each.leaf for each in self._registry.pods.values() if each.leaf is not None}
        found, busy_names = dict[UserName, FairnessState](), set[UserName]()
        for leaf in branch.children.values() if branch is not None else ():
            if not isinstance(leaf, UserNode):
                continue
            user = UserName(leaf.name)
            if leaf in busy or leaf.queue or not leaf.is_idle:
                busy_names.add(user)
            else:
                found[user] = FairnessState(leaf.served, worth_keeping(tree.history(leaf)))
        for user, past in usage.past.get(name, {}).items():
            if user != ITSELF and user not in busy_names and user not in found:
                found[user] = self._of_past(past)
        for user in usage.ledger.idle(name) - busy_names - found.keys():
            found[user] = FairnessState()
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.ledger.of(name, usage.now):
            spent.setdefault(user, {})[pool] = amounts
        return {u: FairnessState(k.served, k.history, spent.get(u, {})) for u, k in found.items()}

    def _drop(self, name: TenantName, users: Iterable[UserName]) -> None:
        """Drop idle users of a tenant. Their totals count for `OTHERS`."""
        usage, gone = self._usage, set(users)
        usage.ledger.fold(usage.now, name, gone)
        past = usage.past.get(name, {})
        for user in gone:
            past.pop(user, None)
            leaf = usage.tree.leaf_of(name, user)
            if leaf is not None:
                usage.tree.drop(leaf)

    def make_checkpoint(self, name: TenantName) -> TenantCheckpoint:
        """Return the present checkpoint of a tenant. Call it only while leading."""
        assert self._epoch is not None
        usage = self._usage
        found = {user: self._of_past(past) for user, past in usage.past.get(name, {}).items()}
        branch = usage.tree.tenants.get(name)
        if branch is not None:
            found[ITSELF] = FairnessState(branch.served, worth_keeping(usage.tree.history(branch)))
            for leaf in branch.children.values():
                if isinstance(leaf, UserNode):
                    past = worth_keeping(usage.tree.history(leaf))
                    found[UserName(leaf.name)] = FairnessState(leaf.served, past)
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.ledger.of(name, usage.now):
            if managed := {r: v for r, v in amounts.items() if v and r in self._managed}:
                spent.setdefault(user, {})[pool] = managed
        users: dict[UserName, FairnessState] = {}
        for user in {*found, *spent}:
            seen = found.get(user, FairnessState())
            users[user] = FairnessState(seen.served, seen.history, spent.get(user, {}))
        own = users.pop(
            ITSELF, FairnessState()
        )  # includes the totals of OTHERS, which has the same key
        worthy = {u: k for u, k in users.items() if k.history or k.spent or k.served > NEVER}
        checkpoint = bounded(usage.now, self._epoch, own, worthy)
        self._fold(name, {user for user in worthy if user not in checkpoint.users})
        return checkpoint

    def _fold(self, name: TenantName, users: set[UserName]) -> None:
        """Drop users that the checkpoint does not name. The next leader would not have them."""
        if not users:
            return
        usage = self._usage
        usage.ledger.fold(usage.now, name, users)
        for user in users & usage.past.get(name, {}).keys():
            if usage.tree.leaf_of(name, user) is None:
                del usage.past[name][user]

    def _of_past(self, past: BranchHistory) -> FairnessState:
        faded = past.faded(self._usage.now, self._usage.policy.half_life)
        return FairnessState(past.served, worth_keeping(faded))

    def _restore(
        self, name: TenantName, checkpoint: TenantCheckpoint, since: Millis, first: bool
    ) -> None:
        """Restore the state of a tenant and its users; at `first` also of unnamed users."""
        usage, named = self._usage, dict(checkpoint.users)
        branch = usage.tree.tenants.get(name)
        if branch is not None and first:
            new = {UserName(each.name) for each in branch.children.values() if _is_user(each)}
            named |= dict.fromkeys(new - named.keys(), FairnessState())
        if name != ELSEWHERE:
            usage.recall(name, ITSELF, self._brought_up(branch, checkpoint.own, since))
        self._spend(name, OTHERS, checkpoint.own, None, since)
        for user, kept in named.items():
            leaf = usage.tree.leaf_of(name, user)
            usage.recall(name, user, self._brought_up(leaf, kept, since))
            self._spend(name, user, kept, leaf, since)
        if not first:
            self._forget_spent(name, {OTHERS, *named}, since)

    def _forget_spent(self, name: TenantName, named: Set[UserName], since: Millis) -> None:
        """Drop the totals of users that a checkpoint does not name, because its sum contains them.

        The usage of their pods since the checkpoint is not in the sum, and is added again.
        """
        usage, branch = self._usage, self._usage.tree.tenants.get(name)
        others = {UserName(each.name): each for each in branch.children.values()} if branch else {}
        usage.ledger.forget_spent(usage.now, name, named)
        for user, leaf in others.items():
            if isinstance(leaf, UserNode) and user not in named:
                self._spend(name, user, FairnessState(), leaf, since)

    def _spend(
        self,
        name: TenantName,
        user: UserName,
        kept: FairnessState,
        leaf: UserNode | None,
        since: Millis,
    ) -> None:
        """Set the totals of a user: the stored ones plus the usage of its pods since then."""
        now = self._usage.now
        totals = {pool: dict(amounts) for pool, amounts in kept.spent.items()}
        for start, pool, demand in self._uses(leaf, since) if leaf is not None else ():
            amounts = totals.setdefault(pool, {})
            for r in filter(self._managed.__contains__, demand):
                amounts[r] = amounts.get(r, 0) + demand[r] * (now - start)
        for pool, spent in totals.items():
            self._usage.ledger.restore(now, (name, user, pool), spent)

    def _brought_up(
        self, branch: TenantNode | None, kept: FairnessState, since: Millis
    ) -> BranchHistory:
        """Return the state of a branch, with the usage of its pods since the checkpoint."""
        if branch is None or since >= self._usage.now:
            return BranchHistory(kept.served, kept.history, since)
        tree = self._usage.tree
        then = TenantNode(branch.name, None, branch.weight, {})
        then.guarantees = branch.guarantees
        then.recall(kept.served, kept.history, since)
        uses = [use for leaf in _users(branch) for use in self._uses(leaf, since)]
        for start, pool, demand in sorted(uses, key=itemgetter(0)):
            then.history, then.remembered = tree.history(then, start), start
            then.use(pool, tree.scale.cost(pool, demand), 1)
        return BranchHistory(kept.served, then.history, then.remembered)

    def _uses(self, leaf: UserNode, since: Millis) -> Iterator[tuple[Millis, PoolName, Amounts]]:
        """Yield start, pool and requests of each pod of a user that uses capacity now."""
        now = self._usage.now
        for tracked in self._registry.running.get(leaf, {}).values():
            start = tracked.pod.started or tracked.released or now
            if since == _NEVER_KEPT and tracked.stamp == NEVER:
                start = now  # it predates Fairgate: earlier usage does not count
            if tracked.pool is not None:
                yield Millis(max(since, min(start, now))), tracked.pool, tracked.pod.demand


def _is_user(branch: TenantNode) -> bool:
    return isinstance(branch, UserNode)


def _users(branch: TenantNode) -> Iterable[UserNode]:
    return [branch] if isinstance(branch, UserNode) else leaves(branch)
