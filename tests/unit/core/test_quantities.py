"""Quantities: exact, rounded up, and limited to the formats of Kubernetes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from app.core.errors import InvalidQuantity
from app.core.model import Resource
from app.core.quantities import (
    MAX_AMOUNT,
    ManagedResources,
    fits,
    format_amount,
    parse_amount,
    parse_amounts,
    parse_quantity,
)

GPU = Resource("nvidia.com/gpu")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("2", 2),
        (2, 2),
        (1.5, Fraction(3, 2)),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+3", 3),
        ("-3", -3),
        ("1k", 1000),
        ("1M", 10**6),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("1Ei", 2**60),
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("100n", Fraction(1, 10**7)),
        ("3u", Fraction(3, 10**6)),
        (" 1Gi\n", 2**30),
        ("1e100", 10**100),
        ("1e0000000000", 1),
        ("1e+00000000003", 1000),
        ("1e4294967297", 10),  # the API server keeps the lower 32 bits
        (1e22, 10**22),
        ("9" * 60, 10**60 - 1),
        ("0" * 5000 + "2", 2),
    ],
)
def test_a_quantity_has_its_exact_value(text: str | int | float, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "1 Gi", "one", "1K", "1kk", "1e", "1e3Ki", "0x1", "1_0", "--1", "1e1.5"],
        *["1e9223372036854775808", "1e-" + 5000 * "9"],
        *["٣", "NaN", "inf", float("nan"), float("inf"), "+", "1.2.3", ".", "1e", "e3"],
    ],
)
def test_invalid_quantity_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidQuantity):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("resource", "text", "units"),
    [
        ("cpu", "1", 1000),
        ("cpu", "1500m", 1500),
        ("cpu", "0.0001", 1),
        ("memory", "1Gi", 2**30),
        ("memory", "1500m", 2),
        ("nvidia.com/gpu", "4", 4),
        ("nvidia.com/gpu", "100m", 1),
    ],
)
def test_amount_below_one_unit_is_rounded_up(resource: str, text: str, units: int) -> None:
    assert parse_amount(resource, text) == units


def test_a_mistake_names_its_resource() -> None:
    with pytest.raises(InvalidQuantity, match=r"nvidia\.com/gpu.*'two'"):
        parse_amounts({"cpu": "1", "nvidia.com/gpu": "two"})


@pytest.mark.parametrize(
    ("resource", "units", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("nvidia.com/gpu", 3, "3"),
        ("nvidia.com/gpu", 1024, "1024"),
        ("cpu", 0, "0"),
        ("memory", 0, "0"),
        ("memory", 1000, "1000"),
        ("memory", 3 * 1024**3, "3Gi"),
        ("ephemeral-storage", 1536 * 1024**2, "1536Mi"),
        ("hugepages-2Mi", 1024 * 1024**4, "1Pi"),
    ],
)
def test_an_amount_is_written_so_that_it_reads_back(resource: str, units: int, text: str) -> None:
    assert format_amount(resource, units) == text
    assert parse_amount(resource, text) == units


def test_request_of_zero_fits_if_the_resource_is_absent() -> None:
    assert fits({GPU: 0}, {})
    assert fits({GPU: 2}, {GPU: 2})
    assert not fits({GPU: 3}, {GPU: 2})
    assert not fits({GPU: 1}, {})


@pytest.mark.parametrize(
    ("resource", "managed"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/mig-1g.5gb", True),
        ("nvidia.com/mig", False),
        ("nvidia.com/gpu.product", False),
        ("cpu", False),
    ],
)
def test_star_matches_any_suffix(resource: str, managed: bool) -> None:
    chosen = ManagedResources(["nvidia.com/gpu", "nvidia.com/mig-*"])

    assert (resource in chosen) is managed
    assert chosen.has_managed({Resource(resource): 1}) is managed


def test_asking_for_zero_is_not_asking() -> None:
    assert not ManagedResources([GPU]).has_managed({GPU: 0})


def test_no_resource_is_managed_without_patterns() -> None:
    assert GPU not in ManagedResources([])


@pytest.mark.parametrize("text", ["1e999999999", "9" * 5000, "8" * 401 + "Ei"])
def test_huge_quantity_is_limited_to_the_maximum_amount(text: str) -> None:
    assert parse_quantity(text) > 2**200
    assert parse_amount("memory", text) == MAX_AMOUNT


@pytest.mark.parametrize("text", ["1e-999999999", "0." + 5000 * "0" + "1", "1n"])
def test_a_quantity_above_zero_never_becomes_zero(text: str) -> None:
    assert parse_quantity(text) > 0
    assert parse_amount("memory", text) == 1
