"""Bounds on the lists of a pod: counted field by field, with the numbers of the chart."""

from __future__ import annotations

import re

import msgspec
import pytest

from app.core.podspec.size_limits import BOUNDS, RELEASED, ListLengths, sentence, size_limit_message
from app.devcluster.fairgate_install import CHART
from app.k8s_types import objects
from app.k8s_types.list_sizes import sizes_of
from tests.contract.enforcement_cases import OVER, WITHIN, held

BOUNDS_CEL = CHART / "templates" / "_bounds.tpl"


@pytest.mark.parametrize("field", ListLengths._fields)
def test_a_pod_just_over_a_bound_is_refused_with_its_sentence(field: str) -> None:
    assert size_limit_message(
        sizes_of(msgspec.convert(held(OVER[field]), objects.PodObject))
    ) == sentence(field)


@pytest.mark.parametrize("field", ListLengths._fields)
def test_a_pod_at_a_bound_is_not_too_large(field: str) -> None:
    assert (
        size_limit_message(sizes_of(msgspec.convert(held(WITHIN[field]), objects.PodObject))) == ""
    )


@pytest.mark.parametrize("field", ListLengths._fields)
def test_a_released_pod_may_be_larger(field: str) -> None:
    assert (
        size_limit_message(
            sizes_of(msgspec.convert(held(OVER[field]), objects.PodObject)), RELEASED
        )
        == ""
    )


def test_the_chart_has_the_same_numbers_and_sentences() -> None:
    text = BOUNDS_CEL.read_text()
    lines = re.findall(r"^(\w+) \| .* \| (\d+) \| (.+)$", text, re.MULTILINE)
    wordy = re.findall(r'"most" "(\d+)" "what" "([^"]+)"', text)
    stated = [*lines, *(("annotation", *each) for each in wordy)]
    assert {field: int(most) for field, most, _ in stated} == BOUNDS._asdict()
    for field, most, what in stated:
        assert sentence(field).endswith(f"at most {most} {what}; use fewer.")
