"""The Redis servers of the contract tests: a shared one, and one that a test may break."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.redis import RedisProcess
from tests.support.shared_stores import Fakes, World, real


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path_factory.mktemp("redis"))
    yield process
    process.kill()


@pytest.fixture
def store_url(shared_redis: RedisProcess) -> str:
    return shared_redis.url


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisProcess]:
    process = RedisProcess(tmp_path)
    yield process
    process.kill()


@pytest.fixture(params=["fake", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """The stores of several replicas that share one memory: fakes, then a real Redis."""
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield Fakes()
        else:
            yield await stack.enter_async_context(real(request.getfixturevalue("store_url")))
