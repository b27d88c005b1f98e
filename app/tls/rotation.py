"""Rules of certificate rotation, as pure functions. Callers pass the time.

`next_step` and `content_after` rotate the Secret that all replicas share. `next_move` decides how
one replica follows its source, which is that Secret or files. Both follow one rule: clients trust a
CA long before its first certificate is served, and long after its last one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from app.tls.ca_bundle import (
    ServingBundle,
    expires_at,
    is_renewal_due,
    is_subset,
    is_valid_yet,
    merge_bundles,
    signing_cas,
)
from app.tls.certificate_authority import new_authority

KEYS = ("tls.crt", "tls.key", "ca.crt")
STAGED_KEYS = ("next.crt", "next.key")

Content = Mapping[str, bytes]
"""The data of the Secret: `KEYS`, and also `STAGED_KEYS` while a certificate is staged."""


class RotationStep(Enum):
    """The next step of the Secret's rotation."""

    REST = "rest"
    STAGE = "stage"
    PROMOTE = "promote"
    DROP = "drop"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class ServedState:
    """The certificate that one replica serves, and the CAs that it published; empty at first."""

    serving: ServingBundle
    published: bytes = b""


@dataclass(frozen=True, slots=True)
class PublishCAs:
    """Make callers trust exactly these CAs."""

    ca: bytes


@dataclass(frozen=True, slots=True)
class ServeCertificate:
    """Serve with this certificate from now on."""

    serving: ServingBundle


def next_step(
    content: Content, now: datetime, steady: timedelta, settle: timedelta
) -> RotationStep:
    """Return the next step.

    `steady`: how long this replica has served and published the content.
    """
    current, staged = content["tls.crt"], content.get("next.crt")
    # A replica whose clock is wrong may have made a certificate of the future.
    if now >= expires_at(current) or not is_valid_yet(current, now):
        return RotationStep.REPLACE  # clients refuse it, so a gradual rotation is pointless
    if staged and is_valid_yet(staged, now) and not is_renewal_due(staged, now):
        return RotationStep.PROMOTE if steady >= settle else RotationStep.REST
    if staged or is_renewal_due(current, now):
        return RotationStep.STAGE
    needed = signing_cas(content["ca.crt"], current)
    # A replica that started just before the promotion publishes again, waits, and then follows.
    if needed and not is_subset(content["ca.crt"], needed) and steady >= 2 * settle:
        return RotationStep.DROP
    return RotationStep.REST


def content_after(
    step: RotationStep, content: Content, names: Sequence[str], now: datetime, days: int
) -> dict[str, bytes]:
    """Return the content of the Secret after a step."""
    match step:
        case RotationStep.REST:
            return dict(content)
        case RotationStep.STAGE:
            made = new_content(names, now, days)
            trusted = signing_cas(content["ca.crt"], content["tls.crt"]) or content["ca.crt"]
            return {
                "tls.crt": content["tls.crt"],
                "tls.key": content["tls.key"],
                "ca.crt": merge_bundles(trusted, made["ca.crt"]),
                "next.crt": made["tls.crt"],
                "next.key": made["tls.key"],
            }
        case RotationStep.PROMOTE:
            return {
                "tls.crt": content["next.crt"],
                "tls.key": content["next.key"],
                "ca.crt": content["ca.crt"],
            }
        case RotationStep.DROP:
            return {**content, "ca.crt": signing_cas(content["ca.crt"], content["tls.crt"])}
        case RotationStep.REPLACE:
            return new_content(names, now, days)


def new_content(names: Sequence[str], now: datetime, days: int) -> dict[str, bytes]:
    """Create a CA and one certificate with the same lifetime. The CA's key is discarded."""
    # Each CA has a unique name, because some clients look up issuers only by name.
    authority = new_authority(f"fairgate-webhook-ca-{secrets.token_hex(4)}", now, days)
    issued = authority.issue(
        "fairgate-webhook", names=names, server=True, client=False, now=now, days=days
    )
    made = (issued.certificate_pem, issued.key_pem, authority.certificate_pem)
    return dict(zip(KEYS, made, strict=True))


def next_move(
    shown: ServedState, found: ServingBundle, now: datetime, waited: timedelta, settle: timedelta
) -> PublishCAs | ServeCertificate | None:
    """Return the next move of one replica towards `found`; None: it is done, or must wait.

    `waited`: the time since the last move.
    """
    served = shown.serving
    has_waited = waited >= settle
    if (found.certificate, found.key) != (served.certificate, served.key):
        if not is_subset(found.ca, shown.published):
            return PublishCAs(merge_bundles(shown.published, found.ca))
        return (
            ServeCertificate(found) if has_waited or now >= expires_at(served.certificate) else None
        )
    if is_subset(found.ca, shown.published) and is_subset(shown.published, found.ca):
        return None
    only_adds = is_subset(shown.published, found.ca)
    return PublishCAs(found.ca) if only_adds or has_waited else None
