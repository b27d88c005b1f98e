"""The rules of reclaim: which victims a workload may take. They prevent circular evictions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from app.core.effects import BorrowedShares, ReclaimCause
from app.core.fairshare.sort_key import GUARANTEED
from app.core.fairshare.tree_node import TenantNode, UserNode, path_to_root
from app.core.lifecycle.pod_record import PodRecord
from app.core.model import Millis
from app.core.policy import Reclaim
from app.core.scheduling.reclaim_cooldown import ReclaimCooldowns, ReclaimRecord
from app.core.scheduling.reclaim_trial import ReclaimTrial
from app.core.scheduling.victims import Victim


class ReclaimRules:
    """Compares the tenant of a workload with those that would lose pods.

    `mine` and `rival` are always siblings: the two children of the lowest common ancestor.
    """

    def __init__(self, cooldowns: ReclaimCooldowns) -> None:
        self._cooldowns = cooldowns

    def reclaim_pairs(self, trial: ReclaimTrial) -> Iterator[tuple[TenantNode, list[TenantNode]]]:
        """Return the tenants above the workload that may reclaim, each with its siblings."""
        if trial.registry.usage.policy.reclaim is Reclaim.OFF:
            return
        only_owed = trial.registry.usage.policy.reclaim is Reclaim.GUARANTEE
        for branch in path_to_root(trial.leaf):
            if isinstance(branch, UserNode) or (
                only_owed and not self.is_within_guarantee(trial, branch)
            ):
                continue
            if branch.parent is not None:
                siblings = branch.parent.children.values()
                yield (
                    branch,
                    [s for s in siblings if s is not branch and not isinstance(s, UserNode)],
                )

    def may_reclaim_from(self, trial: ReclaimTrial, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether any pod of a rival may be taken in the present state."""
        cost = trial.registry.usage.tree.cost(trial.shape, trial.pool)
        return rival.is_borrowing(trial.pool, cost) and self._is_fair_between(trial, mine, rival)

    def may_take(
        self, trial: ReclaimTrial, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        """Return whether the rules permit this victim in the present state."""
        if not self._is_allowed(trial, mine, rival, victim):
            return False
        trial.add_victim_usage(victim, -1)
        fair = self._is_fair_between(trial, mine, rival)
        trial.add_victim_usage(victim, 1)
        return fair and not self._is_spared_now(trial, mine, victim)

    def are_all_permitted(self, trial: ReclaimTrial, back: Victim | None = None) -> bool:
        """Check every victim again, as if it were the last one taken.

        `back` was just spared. Only victims compared with an ancestor of `back` are checked then.
        """
        above = None if back is None else set(path_to_root(back.leaf))
        return all(self.is_permitted(trial, victim, above) for victim in trial.victims)

    def is_permitted(
        self, trial: ReclaimTrial, victim: Victim, above: set[TenantNode] | None = None
    ) -> bool:
        """Check a victim as if it were the last one taken.

        With `above`, only a victim that is compared with one of these ancestors is checked.
        """
        if victim.cause is ReclaimCause.PRIORITY:
            return True
        mine, rival = diverging_ancestors(trial.leaf, victim.leaf)
        if above is not None and mine not in above:
            return True
        fair = self._is_fair_between(trial, mine, rival)
        trial.add_victim_usage(victim, 1)
        lawful = self._is_allowed(trial, mine, rival, victim)
        trial.add_victim_usage(victim, -1)
        return fair and lawful and not self._is_spared_now(trial, mine, victim)

    def is_within_guarantee(self, trial: ReclaimTrial, mine: TenantNode) -> bool:
        """Return whether the workload is within the guarantee of its tenant."""
        if not mine.guarantees:
            return False
        return trial.registry.usage.tree.rank(mine, trial.shape, trial.pool).band == GUARANTEED

    def _is_allowed(
        self, trial: ReclaimTrial, mine: TenantNode, rival: TenantNode, victim: Victim
    ) -> bool:
        """Return whether all tenants from the victim up to the rival borrow needed resources."""
        if (
            trial.registry.usage.policy.reclaim is Reclaim.GUARANTEE
            and not self.is_within_guarantee(trial, mine)
        ):
            return False
        freed = victim.freed_resources()
        cost = trial.registry.usage.tree.cost(trial.shape, trial.pool)
        useful = tuple(each for each in cost if each[0] in freed)
        for branch in path_to_root(victim.leaf):
            if not isinstance(branch, UserNode) and not branch.is_borrowing(trial.pool, useful):
                return False
            if branch is rival:
                return True
        return False

    def _is_fair_between(self, trial: ReclaimTrial, mine: TenantNode, rival: TenantNode) -> bool:
        """Return whether the rival would not have a lower score than the workload's tenant."""
        if self.is_within_guarantee(trial, mine):
            return True
        if not (mine.weight[0] and rival.weight[0]):
            return bool(mine.weight[0])  # weight 0 gets only unclaimed capacity
        tree = trial.registry.usage.tree
        cost = tree.cost(trial.shape, trial.pool)
        left = tree.score(rival, tree.twice_borrowed(rival, trial.pool, (), 0))
        return left >= tree.score(mine, tree.twice_borrowed(mine, trial.pool, cost, 2))

    def _is_spared_now(self, trial: ReclaimTrial, mine: TenantNode, victim: Victim) -> bool:
        """Return whether a recent reclaim protects a victim from this one.

        A guarantee takes from borrowers only, so it never reverses an earlier reclaim for one.
        """
        if self.is_within_guarantee(trial, mine):
            return False
        now = trial.registry.usage.now
        return self._is_on_cooldown(trial, victim) or any(
            _is_spared(tracked, trial.leaf, now) for tracked in victim.pods
        )

    def _is_on_cooldown(self, trial: ReclaimTrial, victim: Victim) -> bool:
        """Return whether the reclaim is on cooldown as the reverse of a recent reclaim."""
        taking = ReclaimRecord(trial.pool, victim.leaf.tenant, trial.leaf.tenant)
        until = self._cooldowns.forbidden_until(taking, trial.registry.usage.now)
        if until is None:
            return False
        trial.totals.on_cooldown[trial.queue_key.uid, trial.pool, victim.leaf.tenant] = until
        trial.totals.retry_by(until)
        return True

    def final_victims(
        self, trial: ReclaimTrial
    ) -> tuple[tuple[Victim, ...], tuple[BorrowedShares, ...]]:
        """Return the victims with their final causes, and the comparison of each."""
        compared = tuple(self._compare_shares(trial, victim) for victim in trial.victims)
        return tuple(self._with_final_cause(trial, victim) for victim in trial.victims), compared

    def _with_final_cause(self, trial: ReclaimTrial, victim: Victim) -> Victim:
        """Return a victim with its final cause. Other victims may have been spared meanwhile."""
        if victim.cause is ReclaimCause.PRIORITY:
            return victim
        mine, _ = diverging_ancestors(trial.leaf, victim.leaf)
        return replace(
            victim,
            cause=ReclaimCause.GUARANTEE
            if self.is_within_guarantee(trial, mine)
            else ReclaimCause.FAIR,
        )

    def _compare_shares(self, trial: ReclaimTrial, victim: Victim) -> BorrowedShares:
        tree, cost = (
            trial.registry.usage.tree,
            trial.registry.usage.tree.cost(trial.shape, trial.pool),
        )
        if victim.leaf is trial.leaf:
            own = tree.weighted_share(trial.leaf, trial.pool, cost, 2)
            return BorrowedShares((own, own), ("", ""))
        mine, rival = diverging_ancestors(trial.leaf, victim.leaf)
        theirs = tree.weighted_share(rival, trial.pool, (), 0)
        shares = theirs, tree.weighted_share(mine, trial.pool, cost, 2)
        return BorrowedShares(
            shares,
            (
                _branch_description(rival, victim.leaf, "its user"),
                _branch_description(mine, trial.leaf, "the other user"),
            ),
        )


def diverging_ancestors(one: TenantNode, other: TenantNode) -> tuple[TenantNode, TenantNode]:
    """Return the two children of the lowest common ancestor, on the paths to both nodes."""
    mine, theirs = list(path_to_root(one)), list(path_to_root(other))
    while len(mine) > 1 and len(theirs) > 1 and mine[-2] is theirs[-2]:
        mine.pop()
        theirs.pop()
    return mine[-2], theirs[-2]


def _branch_description(branch: TenantNode, leaf: UserNode, user: str) -> str:
    """Return a name for a branch above a user that does not tell who the user is."""
    if branch is leaf:
        return user
    above = f" (above tenant {leaf.tenant})" if branch.name != leaf.tenant else ""
    return f"tenant {branch.name}{above}"


def _is_spared(tracked: PodRecord, leaf: UserNode, now: Millis) -> bool:
    """Return whether pods of this tenant were recently evicted to make room for this pod."""
    if tracked.reclaim_protection is None:
        return False
    payers, until = tracked.reclaim_protection
    return leaf.tenant in payers and now < until
