"""Tokens of an OIDC provider: the API server checks them, and Fairgate their client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.devcluster import component_config, component_flags
from app.devcluster.cluster import LocalCluster
from app.kube.access_review import AUDIENCE, Reviews
from app.kube.client import Client
from app.ports.auth import Identity
from tests.support.cluster_driver import Stage, until
from tests.support.oidc_provider import OidcProvider, oidc_provider
from tests.support.rest_doors import AGGREGATED, Endpoint, api_server

PAGE, OTHER = "fairgate-page", "other-client"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@pytest.fixture
def provider(stage: Stage, tmp_path: Path) -> Iterator[OidcProvider]:
    """A provider that the API server trusts for two clients, until the end of the test."""
    file = stage.cluster.folder / "config" / component_flags.AUTHENTICATION
    with oidc_provider(tmp_path) as found:
        try:
            trusted = component_config.authentication(found.trusted(PAGE, OTHER))
            file.write_text(json.dumps(trusted), encoding="utf-8")
            token = found.token("alice", PAGE)
            ask = api_server(stage, token).ask
            until("the API server trusts it", lambda: ask("POST", WHOAMI, REVIEW)[0] == 201)
            yield found
        finally:
            file.write_text(json.dumps(component_config.authentication()), encoding="utf-8")


def found(
    cluster: LocalCluster, token: str, audiences: tuple[str, ...], of_providers: tuple[str, ...]
) -> Identity | None:
    """Return the identity that Fairgate's review finds."""

    async def ask() -> Identity | None:
        client = await Client.connect(cluster.kubeconfig)
        try:
            reviews = Reviews(client, time.monotonic, audiences, of_providers)
            return await reviews.authenticate(token)
        finally:
            await client.close()

    return asyncio.run(ask())


def test_a_token_of_a_provider_is_accepted_for_the_configured_client_only(
    stage: Stage, provider: OidcProvider
) -> None:
    def accepted(token: str, *of_providers: str) -> bool:
        return found(stage.cluster, token, (AUDIENCE,), of_providers) is not None

    good = provider.token("alice", PAGE, groups=["team-a"])
    identity = found(stage.cluster, good, (AUDIENCE,), (PAGE,))
    assert identity is not None
    assert identity.name == "oidc:alice"
    assert {"oidc:team-a", "system:authenticated"} <= {*identity.groups}
    assert not accepted(good)
    assert not accepted(provider.token("alice", OTHER), PAGE)
    assert not accepted(provider.token("alice", PAGE, seconds=-60), PAGE)
    forged = OidcProvider(provider.issuer, provider.ca).token("alice", PAGE)
    assert not accepted(forged, PAGE)
    # The reason for a review without an audience: one with the audience refuses the token.
    assert found(stage.cluster, good, (PAGE,), ()) is None


def test_a_token_of_an_account_needs_the_audience_itself(
    stage: Stage, provider: OidcProvider
) -> None:
    stage.cluster.kubectl("-n", "default", "create", "serviceaccount", "oidc-robot")
    stage.objects.append(("serviceaccount", "oidc-robot"))
    make = ("-n", "default", "create", "token", "oidc-robot")
    for_api_server = stage.cluster.kubectl(*make).strip()
    for_page = stage.cluster.kubectl(*make, f"--audience={PAGE}").strip()
    assert found(stage.cluster, for_api_server, (AUDIENCE,), (PAGE,)) is None
    assert found(stage.cluster, for_page, (AUDIENCE,), (PAGE,)) is None
    assert found(stage.cluster, for_page, (AUDIENCE, PAGE), ()) is not None


def test_a_person_with_a_token_of_a_provider_signs_in_through_the_api_server(
    stage: Stage, provider: OidcProvider
) -> None:
    door = api_server(stage, provider.token("alice", OTHER))
    behind = Endpoint(door.base + AGGREGATED, door.context, door.token)
    status, me, _ = behind.ask("GET", "/v1/me")
    assert (status, me["name"]) == (200, "oidc:alice")
