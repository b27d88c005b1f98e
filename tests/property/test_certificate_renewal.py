"""Several replicas renew certificate and CA, each at its own pace, for API servers that lag."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import ClusterUnavailable
from app.tls.ca_bundle import signing_cas
from app.tls.certificate_source import SECRET, SecretCertificate
from app.tls.certificate_watcher import Renewal, wait_for_certificate
from app.tls.rotation import new_content
from tests.fakes.fake_secrets import FakeSecrets

NAMESPACE = "ns"
NAMES = ("localhost",)
DAYS = 90
SETTLE = 16
LOOK = SETTLE // 4
LAG = SETTLE // 2
"""Seconds an API server may take to apply a change of the bundle."""

END = 5 * SETTLE
CHANGE_AT = 2 * LOOK
MADE = datetime(2026, 1, 1, tzinfo=UTC)
DUE = MADE + timedelta(days=60, minutes=5)


trusts = cache(signing_cas)
"""Few certificates are compared thousands of times."""


@dataclass
class World:
    """The Secret, the history of the published bundle, and a shared clock."""

    secrets: FakeSecrets = field(default_factory=FakeSecrets)
    bundles: list[bytes] = field(default_factory=list)
    bundle: bytes = b""
    second: int = 0

    def now(self) -> datetime:
        return DUE + timedelta(seconds=self.second - CHANGE_AT)

    async def publish(self, ca: bytes) -> None:
        if self.secrets.silent:
            raise ClusterUnavailable("no answer")
        self.bundle = ca

    async def replica(self) -> Renewal:
        settle = timedelta(seconds=SETTLE)
        source = SecretCertificate(
            self.secrets,
            NAMESPACE,
            names=NAMES,
            days=DAYS,
            settle=settle,
            now=self.now,
            writes=True,
        )
        begun = await wait_for_certificate(source)
        made = Renewal(source, begun, settle=settle, now=self.now, clock=lambda: self.second)
        made.publish_ca = self.publish
        return made

    def recent(self) -> set[bytes]:
        """Return the bundles that an API server may use now."""
        return {bundle for bundle in self.bundles[-LAG:] if bundle}


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_shown_is_trusted_all_the_time(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 3), "replicas")
    phases = [data.draw(st.integers(0, LOOK - 1), "looks at") for _ in range(count)]
    is_deleted = data.draw(st.booleans(), "the Secret is deleted")
    seconds = st.integers(CHANGE_AT, CHANGE_AT + 2 * SETTLE)
    restarts = set() if is_deleted else data.draw(st.sets(seconds, max_size=8), "restarts")
    silences = data.draw(st.sets(seconds, max_size=4), "no request gets through at")
    asyncio.run(change(phases, is_deleted, restarts, silences))


def test_replica_restarted_just_before_the_ca_promotion_stays_trusted() -> None:
    asyncio.run(change([0, 1, 1], False, restarts={21}, silences={8, 24}))


async def change(
    phases: list[int], is_deleted: bool, restarts: set[int], silences: set[int]
) -> None:
    world = World()
    made = MADE + timedelta(days=DAYS) if is_deleted else MADE
    begun = new_content(NAMES, made, DAYS)
    await world.secrets.create_secret(NAMESPACE, SECRET, begun)
    replicas = [await world.replica() for _ in phases]
    # A restart at the end delays the change by as much as a whole change takes.
    for world.second in range(2 * END):
        world.secrets.silent = world.second in silences
        if is_deleted and world.second == CHANGE_AT:
            del world.secrets.stored[NAMESPACE, SECRET]
        if world.second in restarts and not world.secrets.silent:
            replicas[world.second % len(replicas)] = await world.replica()
        await look(world, replicas, phases)
        world.bundles.append(world.bundle)
        for replica in replicas:
            for bundle in world.recent():
                assert trusts(bundle, replica.serving.certificate), world.second

    after = await world.secrets.read_secret(NAMESPACE, SECRET)
    assert after is not None
    assert after.data["tls.crt"] != begun["tls.crt"]
    assert world.bundle == after.data["ca.crt"]
    assert world.bundle.count(b"BEGIN") == 1
    assert {replica.serving.certificate for replica in replicas} == {after.data["tls.crt"]}


async def look(world: World, replicas: list[Renewal], phases: list[int]) -> None:
    for replica, phase in zip(replicas, phases, strict=True):
        if world.second % LOOK == phase:
            try:
                await replica.check_source()
            except ClusterUnavailable:
                assert world.secrets.silent
