"""The time of a certificate change: the rules of the shared Secret and of one replica."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.core.errors import InvalidSettings
from app.tls.ca_bundle import (
    ServingBundle,
    expires_at,
    is_renewal_due,
    is_subset,
    merge_bundles,
    serving_bundle,
    signing_cas,
)
from app.tls.rotation import (
    PublishCAs,
    RotationStep,
    ServeCertificate,
    ServedState,
    content_after,
    new_content,
    next_move,
    next_step,
)

DAY = timedelta(days=1)
SETTLE = timedelta(minutes=10)
NEVER = timedelta()
MADE = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("localhost",)
DAYS = 90
DUE = MADE + 61 * DAY

Content = dict[str, bytes]


@pytest.fixture(scope="module")
def fresh() -> Content:
    return new_content(NAMES, MADE, DAYS)


@pytest.fixture(scope="module")
def staged(fresh: Content) -> Content:
    return content_after(RotationStep.STAGE, fresh, NAMES, DUE, DAYS)


@pytest.fixture(scope="module")
def promoted(staged: Content) -> Content:
    return content_after(RotationStep.PROMOTE, staged, NAMES, DUE, DAYS)


def as_served(content: Content) -> ServingBundle:
    return serving_bundle(*(content[key] for key in ("tls.crt", "tls.key", "ca.crt")))


# --- the Secret ---


def test_a_certificate_of_the_future_is_replaced(fresh: Content) -> None:
    """The clock of the replica that made it was wrong."""
    later = MADE + 400 * DAY
    assert next_step(new_content(NAMES, later, DAYS), MADE, NEVER, SETTLE) is RotationStep.REPLACE
    staged = content_after(RotationStep.STAGE, fresh, NAMES, later, DAYS)
    assert next_step(staged, DUE, SETTLE, SETTLE) is RotationStep.STAGE


def test_a_young_certificate_rests(fresh: Content) -> None:
    assert next_step(fresh, MADE + 59 * DAY, SETTLE, SETTLE) is RotationStep.REST


def test_a_successor_is_staged_once_two_thirds_of_the_life_have_passed(fresh: Content) -> None:
    assert is_renewal_due(fresh["tls.crt"], DUE)
    assert next_step(fresh, DUE, NEVER, SETTLE) is RotationStep.STAGE


def test_staged_rotation_trusts_both_cas_and_serves_the_old_certificate(
    fresh: Content, staged: Content
) -> None:
    assert as_served(staged).certificate == fresh["tls.crt"]
    assert signing_cas(staged["ca.crt"], fresh["tls.crt"]) == fresh["ca.crt"]
    assert signing_cas(staged["ca.crt"], staged["next.crt"])


def test_a_successor_waits_until_its_ca_has_settled(staged: Content) -> None:
    assert next_step(staged, DUE, SETTLE - timedelta(seconds=1), SETTLE) is RotationStep.REST
    assert next_step(staged, DUE, SETTLE, SETTLE) is RotationStep.PROMOTE


def test_promoted_certificate_is_the_staged_one_with_unchanged_cas(
    staged: Content, promoted: Content
) -> None:
    assert promoted == {
        "tls.crt": staged["next.crt"],
        "tls.key": staged["next.key"],
        "ca.crt": staged["ca.crt"],
    }


def test_old_ca_is_dropped_last(fresh: Content, promoted: Content) -> None:
    assert next_step(promoted, DUE, NEVER, SETTLE) is RotationStep.REST
    assert next_step(promoted, DUE, SETTLE, SETTLE) is RotationStep.REST
    assert next_step(promoted, DUE, 2 * SETTLE, SETTLE) is RotationStep.DROP

    dropped = content_after(RotationStep.DROP, promoted, NAMES, DUE, DAYS)

    assert signing_cas(dropped["ca.crt"], dropped["tls.crt"]) == dropped["ca.crt"]
    assert not signing_cas(dropped["ca.crt"], fresh["tls.crt"])
    assert next_step(dropped, DUE, SETTLE, SETTLE) is RotationStep.REST


def test_staged_certificate_that_grew_old_is_staged_again(staged: Content) -> None:
    late = DUE + 28 * DAY
    assert (
        next_step({**staged, "next.crt": staged["tls.crt"]}, late, SETTLE, SETTLE)
        is RotationStep.STAGE
    )

    again = content_after(RotationStep.STAGE, staged, NAMES, late, DAYS)

    assert again["next.crt"] != staged["next.crt"]
    assert again["ca.crt"].count(b"BEGIN") == 2


@pytest.mark.parametrize("which", ["fresh", "staged"])
def test_a_certificate_that_has_ended_is_replaced_at_once(
    which: str, request: pytest.FixtureRequest
) -> None:
    content = request.getfixturevalue(which)
    ended = expires_at(content["tls.crt"])
    assert next_step(content, ended, NEVER, SETTLE) is RotationStep.REPLACE
    assert "next.crt" not in content_after(RotationStep.REPLACE, content, NAMES, ended, DAYS)


def test_cas_are_not_dropped_if_none_signed_the_certificate(fresh: Content) -> None:
    strangers = merge_bundles(*(new_content(NAMES, MADE, DAYS)["ca.crt"] for _ in range(2)))
    content = {**fresh, "ca.crt": strangers}
    assert next_step(content, MADE, SETTLE, SETTLE) is RotationStep.REST


# --- one replica ---


def test_a_replica_publishes_first_of_all(fresh: Content) -> None:
    found = as_served(fresh)
    assert next_move(ServedState(found), found, MADE, NEVER, SETTLE) == PublishCAs(found.ca)
    assert next_move(ServedState(found, found.ca), found, MADE, SETTLE, SETTLE) is None


def test_another_certificate_is_trusted_before_it_is_shown(fresh: Content) -> None:
    old, new = as_served(fresh), as_served(new_content(NAMES, MADE, DAYS))
    both = merge_bundles(old.ca, new.ca)

    assert next_move(ServedState(old, old.ca), new, MADE, SETTLE, SETTLE) == PublishCAs(both)
    assert next_move(ServedState(old, both), new, MADE, NEVER, SETTLE) is None
    assert next_move(ServedState(old, both), new, MADE, SETTLE, SETTLE) == ServeCertificate(new)
    assert next_move(ServedState(new, both), new, MADE, NEVER, SETTLE) is None
    assert next_move(ServedState(new, both), new, MADE, SETTLE, SETTLE) == PublishCAs(new.ca)


def test_a_certificate_renewed_under_the_same_ca_needs_no_publishing(fresh: Content) -> None:
    old = as_served(fresh)
    new = ServingBundle(new_content(NAMES, MADE, DAYS)["tls.crt"], b"key", old.ca)
    assert next_move(ServedState(old, old.ca), new, MADE, SETTLE, SETTLE) == ServeCertificate(new)


def test_more_trust_is_published_at_once_and_less_later(staged: Content, fresh: Content) -> None:
    more, less = as_served(staged), as_served(fresh)
    assert next_move(ServedState(less, less.ca), more, DUE, NEVER, SETTLE) == PublishCAs(more.ca)
    assert next_move(ServedState(more, more.ca), less, DUE, NEVER, SETTLE) is None
    assert next_move(ServedState(more, more.ca), less, DUE, SETTLE, SETTLE) == PublishCAs(less.ca)


def test_rotation_does_not_wait_if_the_old_certificate_has_expired(fresh: Content) -> None:
    old, new = as_served(fresh), as_served(new_content(NAMES, DUE, DAYS))
    ended = expires_at(old.certificate)
    assert next_move(ServedState(old, old.ca), new, ended, NEVER, SETTLE) == PublishCAs(
        merge_bundles(old.ca, new.ca)
    )
    assert next_move(
        ServedState(old, merge_bundles(old.ca, new.ca)), new, ended, NEVER, SETTLE
    ) == ServeCertificate(new)


# --- bundles ---


def test_a_bundle_is_a_set(fresh: Content, promoted: Content) -> None:
    one, other = fresh["ca.crt"], promoted["ca.crt"]
    assert merge_bundles(one, one) == one
    assert merge_bundles(one, b"# a comment\r\n" + one.replace(b"\n", b"\r\n")) == one
    assert is_subset(one, other)
    assert not is_subset(other, one)


@pytest.mark.parametrize(("certificate", "ca"), [(b"junk", b"ca"), (b"certificate", b"junk")])
def test_invalid_pem_is_reported(fresh: Content, certificate: bytes, ca: bytes) -> None:
    first = fresh["tls.crt"] if certificate == b"certificate" else certificate
    second = fresh["ca.crt"] if ca == b"ca" else ca
    with pytest.raises(InvalidSettings, match="PEM"):
        serving_bundle(first, fresh["tls.key"], second)
