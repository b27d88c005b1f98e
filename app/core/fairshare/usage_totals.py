"""Usage totals per tenant, user and pool: exact resource-milliseconds.

An account grows with time at the rate of its current usage.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from app.core.fairshare.checkpoint import OTHER_USERS
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName

AccountKey = tuple[TenantName, UserName, PoolName]


class UsageAccount:
    """The current usage of one owner (`rate`), and its total until `counted_until` (`total`)."""

    __slots__ = ("counted_until", "rate", "total")

    def __init__(self, upto: Millis) -> None:
        self.counted_until = upto
        self.rate: dict[Resource, int] = {}
        self.total: dict[Resource, int] = {}

    def accumulate(self, now: Millis) -> None:
        """Add the usage since `counted_until` to the total. Time never goes back."""
        span = now - self.counted_until
        if span > 0:
            for resource, rate in self.rate.items():
                if rate:
                    self.total[resource] = self.total.get(resource, 0) + rate * span
            self.counted_until = now


class UsageTotals:
    """All accounts. A recount of usage resets only the rates."""

    def __init__(self) -> None:
        self._accounts: dict[TenantName, dict[tuple[UserName, PoolName], UsageAccount]] = {}

    def add_usage(self, now: Millis, owner: AccountKey, demand: Amounts, sign: int = 1) -> None:
        """Change the current usage of an owner from now on. `sign` -1 subtracts."""
        account = self._account(now, owner)
        for resource, value in demand.items():
            account.rate[resource] = account.rate.get(resource, 0) + sign * value

    def reset_rates(self, now: Millis) -> None:
        """Reset the current usage of every account. Totals stay."""
        for accounts in self._accounts.values():
            for account in accounts.values():
                account.accumulate(now)
                account.rate.clear()

    def restore(self, now: Millis, owner: AccountKey, spent: Amounts) -> None:
        """Set the totals of an owner for the given resources."""
        self._account(now, owner).total.update(spent)

    def reset_totals(self, now: Millis, tenant: TenantName, but: Container[UserName]) -> None:
        """Reset the totals of a tenant's users, except these."""
        for (user, _), account in self._accounts.get(tenant, {}).items():
            if user not in but:
                account.accumulate(now)
                account.total.clear()

    def idle_users(self, tenant: TenantName) -> set[UserName]:
        """Return the users of a tenant that have an account and no current usage."""
        accounts = self._accounts.get(tenant, {})
        busy = {user for (user, _), each in accounts.items() if any(each.rate.values())}
        return {user for user, _ in accounts} - busy - {OTHER_USERS}

    def merge_idle_users(self, now: Millis, tenant: TenantName, users: Container[UserName]) -> None:
        """Merge accounts of these users without current usage into the account of `OTHER_USERS`."""
        accounts = self._accounts.get(tenant, {})
        idle = [
            (user, pool)
            for (user, pool), account in accounts.items()
            if user != OTHER_USERS and user in users and not any(account.rate.values())
        ]
        for user, pool in idle:
            spent = self._account(now, (tenant, OTHER_USERS, pool)).total
            for resource, value in accounts.pop((user, pool)).total.items():
                spent[resource] = spent.get(resource, 0) + value

    def tenants(self) -> Iterable[TenantName]:
        """Return every tenant with an account."""
        return self._accounts

    def user_totals(
        self, tenant: TenantName, now: Millis
    ) -> Iterator[tuple[tuple[UserName, PoolName], Mapping[Resource, int]]]:
        """Yield resource-milliseconds of a tenant's users, per pool, up to now."""
        for owner, account in self._accounts.get(tenant, {}).items():
            account.accumulate(now)
            yield owner, account.total

    def all_totals(self, now: Millis) -> Iterator[tuple[AccountKey, Mapping[Resource, int]]]:
        """Yield resource-milliseconds of every owner up to now."""
        for tenant in self._accounts:
            for owner, amounts in self.user_totals(tenant, now):
                yield (tenant, *owner), dict(amounts)

    def _account(self, now: Millis, owner: AccountKey) -> UsageAccount:
        """Return an account, settled up to now. It is created on first use."""
        tenant, user, pool = owner
        accounts = self._accounts.setdefault(tenant, {})
        account = accounts.get((user, pool))
        if account is None:
            account = accounts[user, pool] = UsageAccount(now)
        account.accumulate(now)
        return account
