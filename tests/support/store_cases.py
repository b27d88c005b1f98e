"""A filled store for tests of store adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.support.shared_stores import Fakes, World, real


@pytest.fixture(params=["fake", "redis"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            yield Fakes()
        else:
            yield await stack.enter_async_context(real(request.getfixturevalue("store_url")))
