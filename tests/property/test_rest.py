"""Whatever is asked of the REST API, it answers as its own OpenAPI document says. Never a 5xx."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.hooks import HookContext
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.fakes.neighbours import OTHERS, OURS, PEOPLE, THEIR_NAMESPACE, Neighbours
from tests.fakes.town import Served, served

KNOWN = {
    "tenant": [OURS, OTHERS, "research", "nowhere", "ns.some"],
    "user": ["alice@example.com", "https://issuer.example/a"],
    "pool": ["h100", "t4", "nowhere"],
    "namespace": [OURS, THEIR_NAMESPACE, "nowhere"],
    "pod": ["wait-0", "run-0", "gang-0-0", "nobody"],
}
"""What the names in paths may be, beside anything."""

schema = schemathesis.openapi.from_dict(Neighbours().app().openapi())


@schema.hook
def before_generate_path_parameters(
    context: HookContext, strategy: st.SearchStrategy
) -> st.SearchStrategy:
    names = [each.name for each in context.operation.path_parameters]
    known = st.fixed_dictionaries({name: st.sampled_from(KNOWN[name]) for name in names})
    return known | strategy if names else strategy


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


@pytest.mark.parametrize("who", PEOPLE)
@schema.parametrize()
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_documented(
    case: Case, who: str, town: Served, session: requests.Session
) -> None:
    case.call_and_validate(
        base_url=town.url,
        session=session,
        headers={"Authorization": f"Bearer {who}"},
        excluded_checks=[positive_data_acceptance],
    )
