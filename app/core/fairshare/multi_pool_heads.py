"""Waiting heads that may go to several pools, and the pools where they fit now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from app.core.fairshare.tree_node import TenantNode, UserNode
from app.core.model import PoolName
from app.core.podspec.equivalence_class import EquivalenceClass

PoolNames = tuple[PoolName, ...]


class MultiPoolHeads:
    """Leaves by the equivalence class of their heads and by tenant."""

    def __init__(self, fitting: Callable[[EquivalenceClass], Sequence[PoolName]]) -> None:
        """`fitting` returns the pools in which a class fits now, the best packed first."""
        self._fitting = fitting
        self._leaves: dict[EquivalenceClass, dict[TenantNode, dict[UserNode, None]]] = {}
        self._fitted: dict[EquivalenceClass, PoolNames] = {}

    def by_class_and_tenant(
        self,
    ) -> Iterator[tuple[EquivalenceClass, TenantNode, Iterable[UserNode]]]:
        """Yield the leaves of each class and tenant."""
        for shape, tenants in self._leaves.items():
            for tenant, users in tenants.items():
                yield shape, tenant, users

    def fitting_pools(self, shape: EquivalenceClass) -> PoolNames:
        """Return the pools in which a class fitted at the last check."""
        if len(shape.pools) > 1 and shape not in self._fitted:
            self._fitted[shape] = tuple(self._fitting(shape))
        return self._fitted.get(shape, ())

    def drain_changed_users(self) -> Iterator[UserNode]:
        """Check again. Yield the leaves with heads that fit in other pools than before."""
        for shape, before in self._fitted.items():
            fitting = tuple(self._fitting(shape))
            if fitting != before:
                self._fitted[shape] = fitting
                for users in self._leaves[shape].values():
                    yield from users

    def drop_user(self, leaf: UserNode) -> None:
        """Remove a leaf."""
        leaf_was, leaf.head = leaf.head, None
        self.record_head(leaf, leaf_was[1] if leaf_was else None)

    def record_head(self, leaf: UserNode, before: EquivalenceClass | None) -> None:
        """Record the current head of a leaf. `before`: the class of its previous head."""
        now = leaf.head[1] if leaf.head else None
        if now is before:
            return
        tenant = leaf.parent
        assert tenant is not None
        users = self._leaves.get(before, {}).get(tenant, {}) if before is not None else {}
        if before is not None and leaf in users:
            del users[leaf]
            if not users:
                del self._leaves[before][tenant]
            if not self._leaves[before]:
                del self._leaves[before]
                self._fitted.pop(before, None)
        if now is not None and len(now.pools) > 1:
            self._leaves.setdefault(now, {}).setdefault(tenant, {})[leaf] = None
