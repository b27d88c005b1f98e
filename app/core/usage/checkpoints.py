"""Takes checkpoints of tenants, and restores the checkpoints of another leader.

Usage between a checkpoint and its restore is added for pods that use capacity now, from their start
on. Usage of other pods counts only until the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from operator import itemgetter

from app.core.fairshare.checkpoint import (
    MAX_STORED_USERS,
    OTHER_TENANTS,
    OTHER_USERS,
    FairnessState,
    TenantCheckpoint,
    build_checkpoint,
    storable_history,
    users_by_history,
)
from app.core.fairshare.live_usage import TENANT_ITSELF, BranchHistory
from app.core.fairshare.sort_key import NEVER_SERVED
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode, users_below
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
        """`forgets`: idle users beyond `MAX_STORED_USERS` of a tenant are summed up, see
        `count_deleted_pod`.
        """
        self._forgets = forgets
        self._registry = registry
        self._usage = registry.usage
        self._began = False
        self._tenancy = tenancy
        self._epoch: int | None = None
        self._managed = managed
        self._min_version = _NO_VERSION
        self._read_versions: dict[TenantName, _Version] = {}
        self._unrestored: dict[TenantName, tuple[TenantCheckpoint, Millis]] = {}
        self._overwritten: set[TenantName] = set()
        self._departed: dict[TenantName, int] = {}
        """Number of pods that left each tenant since its idle users were counted."""

    @property
    def is_leading(self) -> bool:
        """Whether this engine leads, so that its state is to be stored."""
        return self._epoch is not None

    def epochs(self) -> Iterator[int]:
        """Yield the epochs of the checkpoints that were read."""
        return (epoch for epoch, _ in self._read_versions.values())

    def apply_read(self, name: TenantName, checkpoint: TenantCheckpoint, *, live: bool) -> None:
        """Process a checkpoint that was read. `live`: it was just written, whatever clocks say.

        A leader does not restore it, because its own state is newer. If an older leader wrote it,
        the tenant is recorded for `drain_overwritten`.
        """
        version = (checkpoint.epoch, checkpoint.at)
        if self._epoch is not None and checkpoint.epoch < self._epoch:
            self._overwritten.add(name)
        if self._epoch is not None or version <= self._read_versions.get(name, self._min_version):
            return
        self._read_versions[name] = version
        now = self._usage.now
        self._unrestored[name] = checkpoint, now if live else min(checkpoint.at, now)

    def start_term(self, epoch: int) -> None:
        """Start a leader term: the state of this engine is authoritative."""
        self._epoch = epoch
        self._overwritten.clear()

    def drain_overwritten(self) -> set[TenantName]:
        """Return, once, the tenants with a checkpoint from an earlier leader."""
        found, self._overwritten = self._overwritten, set()
        return found

    def end_term(self) -> None:
        """End a leader term. Checkpoints of this term or older ones are ignored from now on."""
        if self._epoch is not None:
            self._min_version = (self._epoch + 1, Millis(-1))
            self._read_versions.clear()
            self._epoch = None

    def remove_tenant(self, name: TenantName) -> None:
        """Remove a deleted tenant."""
        self._read_versions.pop(name, None)

    def count_deleted_pod(self, name: TenantName) -> None:
        """Count a deleted pod of a tenant, and drop idle users after each `MAX_STORED_USERS` pods.

        The users with the largest history stay, as many as a checkpoint names. The others are
        summed up. Otherwise users with a single visit would fill the memory.
        """
        if not self._forgets:
            return
        departed = self._departed.pop(name, 0) + 1
        if departed < MAX_STORED_USERS:
            self._departed[name] = departed
            return
        users = self._idle_users(name)
        if len(users) > MAX_STORED_USERS:
            self._drop_users(name, users_by_history(users)[MAX_STORED_USERS:])

    def restore(self) -> None:
        """Restore the checkpoints that were read. Call it only after every pod is accounted."""
        first, self._began = not self._began, True
        if first:
            for name in self._usage.tree.tenants:
                self._unrestored.setdefault(name, _UNKNOWN)
        if not first and OTHER_TENANTS in self._unrestored:
            _, since = self._unrestored[OTHER_TENANTS]
            for name in self.tenant_names() - self._unrestored.keys():
                if not self.has_object(name):
                    self._forget_spent(name, frozenset(), since)
        for name, (checkpoint, since) in self._unrestored.items():
            self._restore(name, checkpoint, since, first)
        self._unrestored.clear()

    def tenant_names(self) -> set[TenantName]:
        """Return every tenant with state to store."""
        usage = self._usage
        return {*usage.tree.tenants, *usage.saved_history, *usage.totals.tenants()}

    def has_object(self, name: TenantName) -> bool:
        """Return whether there is a Tenant resource of this name."""
        return name in self._tenancy.tenants

    def is_unchanged(self, checkpoint: TenantCheckpoint, before: TenantCheckpoint) -> bool:
        """Return whether a checkpoint equals an earlier one with decay applied."""
        return checkpoint.equals_decayed(before, self._usage.policy.half_life)

    def _idle_users(self, name: TenantName) -> dict[UserName, FairnessState]:
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
                found[user] = FairnessState(
                    leaf.last_served, storable_history(tree.decayed_history(leaf))
                )
        for user, past in usage.saved_history.get(name, {}).items():
            if user != TENANT_ITSELF and user not in busy_names and user not in found:
                found[user] = self._decayed_state(past)
        for user in usage.totals.idle_users(name) - busy_names - found.keys():
            found[user] = FairnessState()
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.totals.user_totals(name, usage.now):
            spent.setdefault(user, {})[pool] = amounts
        return {
            u: FairnessState(k.last_served, k.history, spent.get(u, {})) for u, k in found.items()
        }

    def _drop_users(self, name: TenantName, users: Iterable[UserName]) -> None:
        """Drop idle users of a tenant. Their totals count for `OTHER_USERS`."""
        usage, gone = self._usage, set(users)
        usage.totals.merge_idle_users(usage.now, name, gone)
        past = usage.saved_history.get(name, {})
        for user in gone:
            past.pop(user, None)
            leaf = usage.tree.find_user(name, user)
            if leaf is not None:
                usage.tree.drop_user(leaf)

    def make_checkpoint(self, name: TenantName) -> TenantCheckpoint:
        """Return the present checkpoint of a tenant. Call it only while leading."""
        assert self._epoch is not None
        usage = self._usage
        found = {
            user: self._decayed_state(past)
            for user, past in usage.saved_history.get(name, {}).items()
        }
        branch = usage.tree.tenants.get(name)
        if branch is not None:
            found[TENANT_ITSELF] = FairnessState(
                branch.last_served, storable_history(usage.tree.decayed_history(branch))
            )
            for leaf in branch.children.values():
                if isinstance(leaf, UserNode):
                    past = storable_history(usage.tree.decayed_history(leaf))
                    found[UserName(leaf.name)] = FairnessState(leaf.last_served, past)
        spent: dict[UserName, dict[PoolName, Amounts]] = {}
        for (user, pool), amounts in usage.totals.user_totals(name, usage.now):
            if managed := {r: v for r, v in amounts.items() if v and r in self._managed}:
                spent.setdefault(user, {})[pool] = managed
        users: dict[UserName, FairnessState] = {}
        for user in {*found, *spent}:
            seen = found.get(user, FairnessState())
            users[user] = FairnessState(seen.last_served, seen.history, spent.get(user, {}))
        own = users.pop(
            TENANT_ITSELF, FairnessState()
        )  # includes the totals of OTHERS, which has the same key
        worthy = {
            u: k for u, k in users.items() if k.history or k.totals or k.last_served > NEVER_SERVED
        }
        checkpoint = build_checkpoint(usage.now, self._epoch, own, worthy)
        self._drop_unnamed_users(name, {user for user in worthy if user not in checkpoint.users})
        return checkpoint

    def _drop_unnamed_users(self, name: TenantName, users: set[UserName]) -> None:
        """Drop users that the checkpoint does not name. The next leader would not have them."""
        if not users:
            return
        usage = self._usage
        usage.totals.merge_idle_users(usage.now, name, users)
        for user in users & usage.saved_history.get(name, {}).keys():
            if usage.tree.find_user(name, user) is None:
                del usage.saved_history[name][user]

    def _decayed_state(self, past: BranchHistory) -> FairnessState:
        faded = past.decayed(self._usage.now, self._usage.policy.half_life)
        return FairnessState(past.last_served, storable_history(faded))

    def _restore(
        self, name: TenantName, checkpoint: TenantCheckpoint, since: Millis, first: bool
    ) -> None:
        """Restore the state of a tenant and its users; at `first` also of unnamed users."""
        usage, named = self._usage, dict(checkpoint.users)
        branch = usage.tree.tenants.get(name)
        if branch is not None and first:
            new = {UserName(each.name) for each in branch.children.values() if _is_user(each)}
            named |= dict.fromkeys(new - named.keys(), FairnessState())
        if name != OTHER_TENANTS:
            usage.restore_history(
                name, TENANT_ITSELF, self._state_until_now(branch, checkpoint.own, since)
            )
        self._restore_totals(name, OTHER_USERS, checkpoint.own, None, since)
        for user, kept in named.items():
            leaf = usage.tree.find_user(name, user)
            usage.restore_history(name, user, self._state_until_now(leaf, kept, since))
            self._restore_totals(name, user, kept, leaf, since)
        if not first:
            self._forget_spent(name, {OTHER_USERS, *named}, since)

    def _forget_spent(self, name: TenantName, named: Set[UserName], since: Millis) -> None:
        """Drop the totals of users that a checkpoint does not name, because its sum contains them.

        The usage of their pods since the checkpoint is not in the sum, and is added again.
        """
        usage, branch = self._usage, self._usage.tree.tenants.get(name)
        others = {UserName(each.name): each for each in branch.children.values()} if branch else {}
        usage.totals.reset_totals(usage.now, name, named)
        for user, leaf in others.items():
            if isinstance(leaf, UserNode) and user not in named:
                self._restore_totals(name, user, FairnessState(), leaf, since)

    def _restore_totals(
        self,
        name: TenantName,
        user: UserName,
        kept: FairnessState,
        leaf: UserNode | None,
        since: Millis,
    ) -> None:
        """Set the totals of a user: the stored ones plus the usage of its pods since then."""
        now = self._usage.now
        totals = {pool: dict(amounts) for pool, amounts in kept.totals.items()}
        for start, pool, demand in self._usage_since(leaf, since) if leaf is not None else ():
            amounts = totals.setdefault(pool, {})
            for r in filter(self._managed.__contains__, demand):
                amounts[r] = amounts.get(r, 0) + demand[r] * (now - start)
        for pool, spent in totals.items():
            self._usage.totals.restore(now, (name, user, pool), spent)

    def _state_until_now(
        self, branch: TenantNode | None, kept: FairnessState, since: Millis
    ) -> BranchHistory:
        """Return the state of a branch, with the usage of its pods since the checkpoint."""
        if branch is None or since >= self._usage.now:
            return BranchHistory(kept.last_served, kept.history, since)
        tree = self._usage.tree
        then = TenantNode(branch.name, None, branch.weight, {})
        then.guarantees = branch.guarantees
        then.restore_history(kept.last_served, kept.history, since)
        uses = [use for leaf in _users(branch) for use in self._usage_since(leaf, since)]
        for start, pool, demand in sorted(uses, key=itemgetter(0)):
            then.history, then.history_at = tree.decayed_history(then, start), start
            then.add_usage(pool, tree.scale.cost(pool, demand), 1)
        return BranchHistory(kept.last_served, then.history, then.history_at)

    def _usage_since(
        self, leaf: UserNode, since: Millis
    ) -> Iterator[tuple[Millis, PoolName, Amounts]]:
        """Yield start, pool and requests of each pod of a user that uses capacity now."""
        now = self._usage.now
        for tracked in self._registry.charged_by_user.get(leaf, {}).values():
            start = tracked.pod.started_at or tracked.released_at or now
            if since == _NEVER_KEPT and tracked.release_id == NEVER_SERVED:
                start = now  # it predates Fairgate: earlier usage does not count
            if tracked.pool is not None:
                yield Millis(max(since, min(start, now))), tracked.pool, tracked.pod.demand


def _is_user(branch: TenantNode) -> bool:
    return isinstance(branch, UserNode)


def _users(branch: TenantNode) -> Iterable[UserNode]:
    return [branch] if isinstance(branch, UserNode) else users_below(branch)
