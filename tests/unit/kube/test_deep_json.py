"""Tests the decoding of deeply nested documents of the API server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.k8s_types import deep_json
from app.k8s_types.deep_json import DEEPEST, Decoder, flattened

VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{},: \n\u2028', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
)


def cut(value: Any, left: int) -> Any:
    """Return a value in which everything below some levels is empty."""
    if isinstance(value, list):
        return [cut(each, left - 1) for each in value] if left else []
    if isinstance(value, dict):
        return {key: cut(each, left - 1) for key, each in value.items()} if left else {}
    return value


@given(VALUES, st.integers(1, 5))
def test_only_deeper_levels_are_emptied(value: Any, deepest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep_json, "DEEPEST", deepest)
        found = msgspec.json.decode(flattened(msgspec.json.encode(value)))
    assert found == cut(value, deepest - 1)


def test_every_depth_is_decoded() -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    decoder = Decoder(dict[str, msgspec.Raw])
    assert decoder.decode(b'{"a":%b,"b":7}' % deep)["b"] == msgspec.Raw(b"7")
    assert flattened(deep) == b"[" * DEEPEST + b"]" * DEEPEST


@pytest.mark.parametrize("document", [b'"' * 1_000_001, b"[" * 2_000 + b"x" * 1_000_000])
def test_time_is_linear_for_invalid_json(document: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(flattened(document))
