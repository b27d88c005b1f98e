"""When certificates change, as pure rules: time is handed in, nothing is read or written.

`next_step` and `taken`: how the Secret all replicas share goes from one certificate and CA to the
next. `move`: how one replica follows what it finds, be it that Secret or files. Both rest on one
rule: a CA is trusted long before the first certificate of it is shown, and long after the last.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from app.tls.issue import new_authority
from app.tls.trust import Serving, ends, is_due, is_within, merge, vouching

KEYS = ("tls.crt", "tls.key", "ca.crt")
NEXT = ("next.crt", "next.key")

Content = Mapping[str, bytes]
"""The data of the Secret: `KEYS`, and `NEXT` while a certificate is staged."""


class Step(Enum):
    """What is to be done with the Secret now."""

    REST = "rest"
    STAGE = "stage"
    PROMOTE = "promote"
    DROP = "drop"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Shown:
    """What one replica serves with, and the CAs it has published ("" before the first time)."""

    serving: Serving
    published: bytes = b""


@dataclass(frozen=True, slots=True)
class Publish:
    """Have callers trust these CAs, and no others."""

    ca: bytes


@dataclass(frozen=True, slots=True)
class Use:
    """Serve with this from now on."""

    serving: Serving


def next_step(content: Content, now: datetime, steady: timedelta, settle: timedelta) -> Step:
    """Return the one step that is due.

    `steady` is how long the replica that asks has served and published just this content.
    """
    current, staged = content["tls.crt"], content.get("next.crt")
    if now >= ends(current):
        return Step.REPLACE  # nobody trusts it any more: there is nothing left to protect
    if staged and not is_due(staged, now):
        return Step.PROMOTE if steady >= settle else Step.REST
    if staged or is_due(current, now):
        return Step.STAGE
    needed = vouching(content["ca.crt"], current)
    if needed and not is_within(content["ca.crt"], needed) and steady >= settle:
        return Step.DROP
    return Step.REST


def taken(
    step: Step, content: Content, names: Sequence[str], now: datetime, days: int
) -> dict[str, bytes]:
    """Return the content of the Secret after a step."""
    match step:
        case Step.REST:
            return dict(content)
        case Step.STAGE:
            made = new_content(names, now, days)
            trusted = vouching(content["ca.crt"], content["tls.crt"]) or content["ca.crt"]
            return {
                "tls.crt": content["tls.crt"],
                "tls.key": content["tls.key"],
                "ca.crt": merge(trusted, made["ca.crt"]),
                "next.crt": made["tls.crt"],
                "next.key": made["tls.key"],
            }
        case Step.PROMOTE:
            return {
                "tls.crt": content["next.crt"],
                "tls.key": content["next.key"],
                "ca.crt": content["ca.crt"],
            }
        case Step.DROP:
            return {**content, "ca.crt": vouching(content["ca.crt"], content["tls.crt"])}
        case Step.REPLACE:
            return new_content(names, now, days)


def new_content(names: Sequence[str], now: datetime, days: int) -> dict[str, bytes]:
    """Make a CA and a certificate of it. Their lives are one: the CA's key is not kept."""
    # A name of its own for each CA: some clients look issuers up by name alone.
    authority = new_authority(f"fairgate-webhook-ca-{secrets.token_hex(4)}", now, days)
    issued = authority.issue(
        "fairgate-webhook", names=names, server=True, client=False, now=now, days=days
    )
    made = (issued.certificate_pem, issued.key_pem, authority.certificate_pem)
    return dict(zip(KEYS, made, strict=True))


def move(
    shown: Shown, found: Serving, now: datetime, waited: timedelta, settle: timedelta
) -> Publish | Use | None:
    """Return what one replica does next on its way to what it has found; None: it is there, or
    waits. `waited` is the time since its last move.
    """
    served = shown.serving
    has_waited = waited >= settle
    if (found.certificate, found.key) != (served.certificate, served.key):
        if not is_within(found.ca, shown.published):
            return Publish(merge(shown.published, found.ca))
        return Use(found) if has_waited or now >= ends(served.certificate) else None
    if is_within(found.ca, shown.published) and is_within(shown.published, found.ca):
        return None
    only_adds = is_within(shown.published, found.ca)
    return Publish(found.ca) if only_adds or has_waited else None
