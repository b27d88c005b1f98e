"""The cache of answers: how long entries stay, and how much memory they may need."""

from __future__ import annotations

import weakref

import pytest

from app.ports.auth import Identity
from app.ports.expiring_cache import MOST_BYTES, ExpiringCache

SECONDS = 5.0
LARGE = MOST_BYTES // 8


class Answer:
    """A value that a test can observe."""


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


def text(number: int, size: int = LARGE) -> str:
    return f"{number:08d}".ljust(size, "a")


def test_an_entry_is_found_until_it_expires(clock: list[float]) -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(lambda: clock[0], SECONDS)
    cache.put("a", 1)
    clock[0] += SECONDS - 1
    assert cache.get("a") == 1
    cache.put("a", 2)
    clock[0] += SECONDS - 1
    assert cache.get("a") == 2
    clock[0] += 1
    assert cache.get("a") is None


def test_the_next_entry_removes_the_expired_ones(clock: list[float]) -> None:
    cache: ExpiringCache[int, Answer] = ExpiringCache(lambda: clock[0], SECONDS)
    stored = []
    for key in range(3):
        answer = Answer()
        stored.append(weakref.ref(answer))
        cache.put(key, answer)
        del answer
        clock[0] += 1
    clock[0] += SECONDS - 2
    cache.put(3, Answer())
    assert [each() is None for each in stored] == [True, True, False]


def test_the_oldest_entries_leave_a_cache_with_too_many(clock: list[float]) -> None:
    cache: ExpiringCache[int, int] = ExpiringCache(lambda: clock[0], SECONDS, most=3)
    for key in range(5):
        cache.put(key, key)
    assert [cache.get(key) for key in range(5)] == [None, None, 2, 3, 4]


@pytest.mark.parametrize("letter", ["", "\U0001f600"])
def test_long_keys_and_values_leave_a_cache_before_it_is_too_large(
    clock: list[float], letter: str
) -> None:
    keys = [("get", Identity("nobody"), letter + text(number)) for number in range(20)]
    cache: ExpiringCache[object, bool] = ExpiringCache(lambda: clock[0], SECONDS)
    for key in keys:
        cache.put(key, True)
    left = [key for key in keys if cache.get(key)]
    assert left == keys[-len(left) :]
    assert len(left) == (1 if letter else 7)

    values: ExpiringCache[int, Identity] = ExpiringCache(lambda: clock[0], SECONDS)
    for number in range(20):
        values.put(number, Identity("a", groups=(letter + text(number),)))
    assert sum(values.get(number) is not None for number in range(20)) == len(left)


def test_an_entry_that_is_replaced_counts_once(clock: list[float]) -> None:
    cache: ExpiringCache[str, str] = ExpiringCache(lambda: clock[0], SECONDS)
    cache.put("first", "")
    for number in range(20):
        cache.put("a", text(number))
    assert cache.get("first") == ""


def test_an_entry_larger_than_the_cache_is_not_stored(clock: list[float]) -> None:
    cache: ExpiringCache[str, int] = ExpiringCache(lambda: clock[0], SECONDS)
    cache.put(text(1, MOST_BYTES), 1)
    assert cache.get(text(1, MOST_BYTES)) is None
    cache.put("a", 2)
    assert cache.get("a") == 2
