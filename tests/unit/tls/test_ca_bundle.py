"""A replica leaves only those CAs in place that another Fairgate replica may have published."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from app.tls.ca_bundle import ServingBundle, merge_bundles
from app.tls.certificate_watcher import Renewal
from app.tls.rotation import new_content

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def made() -> ServingBundle:
    content = new_content(["localhost"], NOW, 90)
    return ServingBundle(content["tls.crt"], content["tls.key"], content["ca.crt"])


class Source:
    """A source with this certificate."""

    def __init__(self, serving: ServingBundle | None) -> None:
        self.serving = serving

    async def read_bundle(self) -> ServingBundle | None:
        return self.serving

    async def advance_rotation(self, steady: timedelta) -> None:
        raise AssertionError("nobody asked for a renewal")


def knows(source: ServingBundle | None, shown: ServingBundle, ca_pem: bytes) -> bool:
    renewal = Renewal(
        Source(source), shown, settle=timedelta(1), now=lambda: NOW, clock=lambda: 0.0
    )
    return asyncio.run(renewal.may_have_published(ca_pem))


SHOWN, NEXT, FOREIGN = made(), made(), made()
STAGED = ServingBundle(SHOWN.certificate, SHOWN.key, merge_bundles(SHOWN.ca, NEXT.ca))


def test_both_cas_of_a_change_are_known_once_they_are_at_the_source() -> None:
    assert knows(STAGED, SHOWN, STAGED.ca)
    assert not knows(SHOWN, SHOWN, STAGED.ca)


def test_a_foreign_ca_is_not_known_not_even_beside_ours() -> None:
    assert not knows(STAGED, SHOWN, FOREIGN.ca)
    assert not knows(STAGED, SHOWN, merge_bundles(SHOWN.ca, FOREIGN.ca))


def test_bundle_without_the_ca_of_the_served_certificate_is_not_retained() -> None:
    assert not knows(STAGED, SHOWN, NEXT.ca)
    assert not knows(None, SHOWN, b"")


def test_the_root_of_a_chain_is_known_although_it_did_not_sign_the_certificate() -> None:
    served = ServingBundle(SHOWN.certificate, SHOWN.key, FOREIGN.ca)
    both = merge_bundles(FOREIGN.ca, NEXT.ca)
    changed = ServingBundle(SHOWN.certificate, SHOWN.key, both)
    assert knows(changed, served, both)
    assert not knows(changed, served, NEXT.ca)
