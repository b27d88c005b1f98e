"""The rights of callers on the state: how long they are cached, and what their reviews cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from app.ports.auth import Identity
from app.ports.expiring_cache import MOST_BYTES
from app.web.api.auth import REVIEWS_PER_REQUEST, Access
from app.web.api.refused import Refused
from app.web.api.visible_state import KNOWN_SECONDS, VisibleStates
from app.web.server.rate_limit import RateLimit
from tests.fakes.fake_api_cluster import ApiCluster, held, tenant

TENANTS = 40
PER_SECOND = 10
"""The bucket has twice as many requests, and a reading costs ten."""

BOT = "system:serviceaccount:team-1:bot-{}"


@dataclass
class Reviewed:
    """Counts reviews. The caller may read the queue of `granted`."""

    granted: str = "team-1"
    reviews: int = 0

    async def authenticate(self, token: str) -> Identity | None:
        return Identity(token)

    async def allows(
        self,
        identity: Identity,
        verb: str,
        resource: str,
        subresource: str = "",
        name: str = "",
        *,
        group: str = "",
        namespace: str = "",
    ) -> bool:
        self.reviews += 1
        return name == self.granted

    async def allows_path(self, identity: Identity, verb: str, path: str) -> bool:
        return False


@dataclass
class Readings:
    """Visible states of a cluster with `TENANTS` tenants, and what they need."""

    authority: Reviewed = field(default_factory=Reviewed)
    now: float = 0.0

    async def open(self) -> VisibleStates:
        cluster = ApiCluster()
        await cluster.open()
        for number in range(TENANTS):
            await cluster.deliver(tenant(f"team-{number}"), held("p", f"team-{number}", "u"))
        access = Access(self.authority, RateLimit(PER_SECOND, lambda: self.now))
        return VisibleStates(replace(cluster.context(), access=access), lambda: self.now)


@pytest.fixture
def readings() -> Readings:
    return Readings()


async def test_rights_are_read_once_in_two_seconds(readings: Readings) -> None:
    states = await readings.open()
    first = await states.rights_of(Identity("alice"))
    assert first.queues == {"team-1"}
    asked = readings.authority.reviews
    readings.authority.granted = "team-2"
    assert await states.rights_of(Identity("alice")) == first
    assert readings.authority.reviews == asked
    readings.now = KNOWN_SECONDS
    assert (await states.rights_of(Identity("alice"))).queues == {"team-2"}


async def test_another_identity_of_the_same_name_is_read_by_itself(readings: Readings) -> None:
    states = await readings.open()
    await states.rights_of(Identity("alice"))
    readings.authority.granted = "team-2"
    assert (await states.rights_of(Identity("alice", groups=("g",)))).queues == {"team-2"}


async def test_long_identities_do_not_fill_the_memory(readings: Readings) -> None:
    """A front proxy or a login service may name a caller with many groups."""
    states = await readings.open()
    large = [Identity(f"{number}", groups=("g" * (MOST_BYTES // 8),)) for number in range(20)]
    for each in large:
        readings.now += 1e-3
        await states.renew_rights(each)
    readings.now += KNOWN_SECONDS / 2
    readings.authority.granted = "team-2"
    found = [(await states.rights_of(each)).queues for each in (large[0], large[-1])]
    assert found == [{"team-2"}, {"team-1"}]


async def test_service_accounts_of_a_namespace_pay_for_their_reviews_together(
    readings: Readings,
) -> None:
    """A tenant can create any number of accounts, and each costs the API server new reviews."""
    states = await readings.open()
    paid = 2 * PER_SECOND // (TENANTS // REVIEWS_PER_REQUEST)
    for number in range(paid):
        await states.rights_of(Identity(BOT.format(number)))
    asked = readings.authority.reviews
    with pytest.raises(Refused) as refused:
        await states.rights_of(Identity(BOT.format(paid)))
    assert refused.value.status == 429
    assert readings.authority.reviews - asked <= 4  # no tenant was asked about
    await states.rights_of(Identity("alice"))  # another caller is not slowed down


async def test_rights_renewal_of_a_stream_does_not_count_in_the_rate_limit(
    readings: Readings,
) -> None:
    states = await readings.open()
    for _ in range(10):
        await states.renew_rights(Identity("alice"))
    await states.rights_of(Identity("bob"))
