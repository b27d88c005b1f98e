"""Entries that are requested repeatedly stay in the cache, however many; others are evicted."""

from __future__ import annotations

import pytest

from app.core.placement.recent_cache import RecentCache


def fill(kept: RecentCache[int, int], questions: range) -> int:
    """Request these keys in turn; return the number of cache misses."""
    return sum(kept.get(each) is None and kept.store(each, each) >= 0 for each in questions)


@pytest.mark.parametrize("count", [11, 25, 100])
def test_more_questions_than_were_foreseen_are_soon_answered_once_each(count: int) -> None:
    kept: RecentCache[int, int] = RecentCache(10)
    assert fill(kept, range(count)) == count
    for _ in range(5):
        fill(kept, range(count))
    assert [fill(kept, range(count)) for _ in range(5)] == [0] * 5


def test_unused_entries_are_evicted() -> None:
    kept: RecentCache[int, int] = RecentCache(10)
    fill(kept, range(25))
    for number in range(100, 1000):
        fill(kept, range(5))  # still requested
        fill(kept, range(number, number + 1))
        assert fill(kept, range(5)) == 0
    assert len(kept) <= 22
    assert kept.get(20) is None


def test_no_entry_is_evicted_within_the_capacity() -> None:
    kept: RecentCache[int, int] = RecentCache(10)
    fill(kept, range(10))
    assert (fill(kept, range(10)), len(kept)) == (0, 10)
    kept.clear()
    assert len(kept) == 0
