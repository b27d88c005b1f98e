"""Every answer of the REST API conforms to its OpenAPI document, without any 5xx."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.hooks import HookContext
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tests.fakes.fake_api_cluster import Served, served
from tests.support.two_teams import OTHERS, OURS, PEOPLE, THEIR_NAMESPACE, Neighbours

KNOWN = {
    "tenant": [OURS, OTHERS, "research", "nowhere", "ns.some"],
    "user": ["alice@example.com", "https://issuer.example/a"],
    "pool": ["h100", "t4", "nowhere"],
    "node": ["h100-00", "gpu-node-0", "nowhere"],
    "namespace": [OURS, THEIR_NAMESPACE, "nowhere"],
    "pod": ["wait-0", "run-0", "gang-0-0", "nobody"],
}
"""Known values of path parameters. Random values are used too."""


def _schema(coverage: bool) -> schemathesis.BaseSchema:
    found = schemathesis.openapi.from_dict(Neighbours().app().openapi())
    found.config.phases.coverage.enabled = coverage

    @found.hook
    def before_generate_path_parameters(
        context: HookContext, strategy: st.SearchStrategy
    ) -> st.SearchStrategy:
        names = [each.name for each in context.operation.path_parameters]
        known = st.fixed_dictionaries({name: st.sampled_from(KNOWN[name]) for name in names})
        return known | strategy if names else strategy

    return found


thorough, brief = _schema(True), _schema(False)


@pytest.fixture(scope="module")
def town() -> Iterator[Served]:
    place = Neighbours()
    place.stays = False  # a stream ends at once
    with served(place) as found:
        found.do(place.settle())
        yield found


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as found:
        yield found


def check(case: Case, who: str, town: Served, session: requests.Session) -> None:
    # A schema cannot express that a name is unknown or a time is too old. Fairgate's schema accepts
    # more numbers as a weight than the API.
    excluded = [positive_data_acceptance, negative_data_rejection]
    if case.path == "/readyz":  # it drains
        excluded.append(not_a_server_error)
    case.call_and_validate(
        base_url=town.url,
        session=session,
        headers={"Authorization": f"Bearer {who}"},
        excluded_checks=excluded,
    )


@pytest.mark.parametrize("who", ["operator"])
@thorough.parametrize()
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_every_response_to_an_operator_is_as_documented(
    case: Case, who: str, town: Served, session: requests.Session
) -> None:
    check(case, who, town, session)


@pytest.mark.parametrize("who", [name for name in PEOPLE if name != "operator"])
@brief.parametrize()
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
def test_every_answer_to_others_is_as_documented(
    case: Case, who: str, town: Served, session: requests.Session
) -> None:
    check(case, who, town, session)
