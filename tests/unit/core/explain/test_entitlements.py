"""Shares by weight alone, and the effect of a weight change."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from app.core.explain.entitlements import TENANT_ITSELF, Standing, shares_by_weight
from app.core.model import TenantName, UserName
from tests.support.asgi import call
from tests.support.rest_app import Both, tenant

A, B, C, D = map(TenantName, "abcd")
ALICE, BOB = UserName("alice"), UserName("bob")


def stands(weight: float, parent: TenantName | None = None, **users: float) -> Standing:
    return Standing(
        parent, Fraction(weight), {UserName(name): Fraction(each) for name, each in users.items()}
    )


def test_siblings_are_owed_by_their_weights() -> None:
    parts = shares_by_weight({A: stands(1), B: stands(2), C: stands(1)})
    assert parts == {
        (A, TENANT_ITSELF): Fraction(1, 4),
        (B, TENANT_ITSELF): Fraction(1, 2),
        (C, TENANT_ITSELF): Fraction(1, 4),
    }


def test_users_and_child_tenants_divide_the_share_of_their_parent() -> None:
    parts = shares_by_weight({A: stands(1, alice=1, bob=2), B: stands(3), C: stands(1, A)})
    assert parts[A, TENANT_ITSELF] == Fraction(1, 4)
    assert (parts[A, ALICE], parts[A, BOB], parts[C, TENANT_ITSELF]) == (
        Fraction(1, 16),
        Fraction(1, 8),
        Fraction(1, 16),
    )


def test_weight_0_has_no_share_even_if_all_siblings_have_weight_0() -> None:
    assert shares_by_weight({A: stands(0), B: stands(1)})[A, TENANT_ITSELF] == 0
    assert shares_by_weight({A: stands(0), B: stands(0)}) == {
        (A, TENANT_ITSELF): 0,
        (B, TENANT_ITSELF): 0,
    }


def test_a_parent_that_is_missing_or_closes_a_circle_counts_as_none() -> None:
    half = Fraction(1, 2)
    assert shares_by_weight({A: stands(1, D), B: stands(1)}) == {
        (A, TENANT_ITSELF): half,
        (B, TENANT_ITSELF): half,
    }
    assert shares_by_weight({A: stands(1, B), B: stands(1, A)}) == {
        (A, TENANT_ITSELF): half,
        (B, TENANT_ITSELF): half,
    }


def test_parts_of_a_level_make_up_their_parent() -> None:
    parts = shares_by_weight(
        {A: stands(0.3, alice=0.7, bob=5), B: stands(7, A), C: stands(2, A), D: stands(11)}
    )
    assert parts[A, TENANT_ITSELF] + parts[D, TENANT_ITSELF] == 1
    below = parts[A, ALICE] + parts[A, BOB] + parts[B, TENANT_ITSELF] + parts[C, TENANT_ITSELF]
    assert below == parts[A, TENANT_ITSELF]


@pytest.fixture
async def both() -> Both:
    both = Both()
    await both.hear(tenant("a"), tenant("b"), tenant("c", parent="a", users={"alice": Fraction(1)}))
    await both.open()
    both.rights.everything = True
    for name, spec in {
        "a": {},
        "b": {},
        "c": {"parent": "a", "users": [{"name": "alice"}]},
    }.items():
        both.resources.put("tenants", name, spec)
    return both


async def shown(both: Both, method: str, path: str, body: object = None) -> dict[str, Any]:
    head = {"authorization": "Bearer alices", "content-type": "application/json"}
    data = b"" if body is None else json.dumps(body).encode()
    reply = await call(both.app, method, f"/v1/tenants/{path}?dryRun=true", data, head)
    assert reply.status == 200, reply.body
    return {
        "/".join(filter(None, (each["tenant"], each["user"]))): (each["before"], each["after"])
        for each in reply.json["shares"]
    }


async def test_dry_run_of_a_weight_shows_every_changed_share(both: Both) -> None:
    assert await shown(both, "PUT", "a/weight", {"weight": "3"}) == {
        "a": ("0.5", "0.75"),
        "b": ("0.5", "0.25"),
        "c": ("0.5", "0.75"),
    }


async def test_dry_run_of_a_user_weight_shows_the_shares_of_the_other_users(both: Both) -> None:
    assert await shown(both, "PUT", "c/users/bob/weight", {"weight": "3"}) == {
        "c/alice": ("0.5", "0.125"),
        "c/bob": (None, "0.375"),
    }


async def test_dry_run_of_a_new_or_deleted_tenant_shows_the_changed_shares(both: Both) -> None:
    assert (await shown(both, "PUT", "d", {"weight": "2"}))["d"] == (None, "0.5")
    gone = await shown(both, "DELETE", "c")
    assert gone == {"c": ("0.5", None), "c/alice": ("0.5", None)}


async def test_dry_run_without_a_weight_change_shows_no_shares(both: Both) -> None:
    assert await shown(both, "PUT", "b", {"paused": True}) == {}
