"""Who used how much for how long: resource-milliseconds, exact, per tenant, user and pool.

An account grows with time at the rate of what is used. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from app.core.fair.checkpoint import OTHERS
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName

Owner = tuple[TenantName, UserName, PoolName]


class Account:
    """What one owner uses now, and what it used until `upto`."""

    __slots__ = ("rate", "spent", "upto")

    def __init__(self, upto: Millis) -> None:
        self.upto = upto
        self.rate: dict[Resource, int] = {}
        self.spent: dict[Resource, int] = {}

    def settle(self, now: Millis) -> None:
        """Write down what was used until now. Time never goes back."""
        span = now - self.upto
        if span > 0:
            for resource, rate in self.rate.items():
                if rate:
                    self.spent[resource] = self.spent.get(resource, 0) + rate * span
            self.upto = now


class Ledger:
    """All accounts. They outlive a recount: only the rates start anew."""

    def __init__(self) -> None:
        self._accounts: dict[TenantName, dict[tuple[UserName, PoolName], Account]] = {}

    def use(self, now: Millis, owner: Owner, demand: Amounts, sign: int = 1) -> None:
        """An owner uses more, or with sign -1 less, from now on."""
        account = self._account(now, owner)
        for resource, value in demand.items():
            account.rate[resource] = account.rate.get(resource, 0) + sign * value

    def forget_rates(self, now: Millis) -> None:
        """Start counting anew who uses what; what was spent stays."""
        for accounts in self._accounts.values():
            for account in accounts.values():
                account.settle(now)
                account.rate.clear()

    def restore(self, now: Millis, owner: Owner, spent: Amounts) -> None:
        """An owner has spent this by now, of the resources that are named."""
        self._account(now, owner).spent.update(spent)

    def forget_spent(self, now: Millis, tenant: TenantName, but: Container[UserName]) -> None:
        """Nobody of a tenant but these has spent anything by now, as far as is known here."""
        for (user, _), account in self._accounts.get(tenant, {}).items():
            if user not in but:
                account.settle(now)
                account.spent.clear()

    def fold(self, now: Millis, tenant: TenantName, users: Container[UserName]) -> None:
        """Sum up accounts of users who use nothing now as that of OTHERS."""
        accounts = self._accounts.get(tenant, {})
        idle = [
            (user, pool)
            for (user, pool), account in accounts.items()
            if user != OTHERS and user in users and not any(account.rate.values())
        ]
        for user, pool in idle:
            spent = self._account(now, (tenant, OTHERS, pool)).spent
            for resource, value in accounts.pop((user, pool)).spent.items():
                spent[resource] = spent.get(resource, 0) + value

    def tenants(self) -> Iterable[TenantName]:
        """Return every tenant that ever used anything."""
        return self._accounts

    def of(
        self, tenant: TenantName, now: Millis
    ) -> Iterator[tuple[tuple[UserName, PoolName], Mapping[Resource, int]]]:
        """Return resource-milliseconds of a tenant's users, per pool, up to now."""
        for owner, account in self._accounts.get(tenant, {}).items():
            account.settle(now)
            yield owner, account.spent

    def spent(self, now: Millis) -> Iterator[tuple[Owner, Mapping[Resource, int]]]:
        """Return resource-milliseconds of every owner up to now."""
        for tenant in self._accounts:
            for owner, amounts in self.of(tenant, now):
                yield (tenant, *owner), dict(amounts)

    def _account(self, now: Millis, owner: Owner) -> Account:
        """Return an account, settled; opened on first use."""
        tenant, user, pool = owner
        accounts = self._accounts.setdefault(tenant, {})
        account = accounts.get((user, pool))
        if account is None:
            account = accounts[user, pool] = Account(now)
        account.settle(now)
        return account
