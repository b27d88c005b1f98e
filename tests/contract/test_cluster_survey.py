"""The reader of `fairgate doctor` on a real API server, and its fake, behave the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.core.errors import ClusterRefused
from app.devcluster.cluster import LocalCluster
from app.kube.client import Client
from app.kube.cluster_survey import ApiSurvey
from app.ports.cluster_survey import ClusterSurvey, Object
from tests.fakes.fake_cluster_survey import FakeSurvey
from tests.support.chart import make

NAMESPACE = "surveyed"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
NAMES = [f"map-{number}" for number in range(5)]

T = TypeVar("T")
Do = Callable[[Callable[[ClusterSurvey], Awaitable[T]]], T]


@pytest.fixture(scope="module")
def reader(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the kubeconfig of a user that may read ConfigMaps of one namespace, and no Secrets."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    for name in NAMES:
        cluster.kubectl("create", "configmap", name, "-n", NAMESPACE)
    read = {"verbs": ["get", "list"]}
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], **read},
        {"apiGroups": ["absent.example.com"], "resources": ["widgets"], **read},
    ]
    api = "rbac.authorization.k8s.io/v1"
    make(cluster, api, "Role", "surveyor", {"rules": rules}, "-n", NAMESPACE)
    cluster.kubectl(
        "create", "rolebinding", "surveyor", "-n", NAMESPACE, "--role=surveyor", "--user=surveyor"
    )
    kubeconfig = tmp_path_factory.mktemp("survey") / "kubeconfig"
    kubeconfig.write_text(cluster.create_user("surveyor"))
    return kubeconfig


@pytest.fixture(params=["fake", "real"])
def do(request: pytest.FixtureRequest) -> Do[Any]:
    """Run a function with the fake, or with a reader of the real API server."""
    if request.param == "fake":
        fake = FakeSurvey(forbidden=frozenset(["/secrets"]))
        maps = [{"metadata": {"name": n, "namespace": NAMESPACE}} for n in NAMES]
        fake.add("/api/v1/configmaps", maps)
        return lambda act: asyncio.run(_awaited(act(fake)))
    kubeconfig: Path = request.getfixturevalue("reader")

    async def real(act: Callable[[ClusterSurvey], Awaitable[Any]]) -> Any:
        client = await Client.connect(kubeconfig)
        try:
            return await act(ApiSurvey(client))
        finally:
            await client.close()

    return lambda act: asyncio.run(real(act))


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


async def names_by_page(survey: ClusterSurvey, path: str) -> list[list[str]]:
    return [
        [n for n in map(name_of, page) if n in NAMES] async for page in survey.list_pages(path, 2)
    ]


def name_of(item: Object) -> str:
    return str(item["metadata"]["name"])


def test_a_list_is_read_in_pages_to_its_end(do: Do[list[list[str]]]) -> None:
    pages = do(lambda survey: names_by_page(survey, MAPS))
    assert [name for page in pages for name in page] == NAMES
    assert max(map(len, pages)) <= 2
    assert len(pages) >= 3


def test_an_object_is_read_by_its_path(do: Do[Object | None]) -> None:
    found = do(lambda survey: survey.get(f"{MAPS}/map-3"))
    assert found is not None
    assert name_of(found) == "map-3"


def test_an_absent_object_is_none(do: Do[Object | None]) -> None:
    assert do(lambda survey: survey.get(f"{MAPS}/absent")) is None


def test_a_kind_that_is_not_served_has_an_empty_list(do: Do[list[list[str]]]) -> None:
    path = f"/apis/absent.example.com/v1/namespaces/{NAMESPACE}/widgets"
    assert do(lambda survey: names_by_page(survey, path)) == []


def test_a_missing_right_is_a_refusal_with_403(do: Do[Any]) -> None:
    with pytest.raises(ClusterRefused) as listed:
        do(lambda survey: names_by_page(survey, SECRETS))
    assert listed.value.status == 403
