"""Opens pages in separate browser contexts, served by an in-memory cluster (`ApiCluster`).

A test fails at its end if the browser reported an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.fakes.fake_api_cluster import Served
from tests.support.browser import browser

__all__ = ["browser"]

Opens = Callable[..., Page]


@pytest.fixture
def opens(browser: Browser) -> Iterator[Opens]:
    """Open pages of an `ApiCluster` in browser contexts; fail at the end if they had errors."""
    contexts = []
    faults: list[str] = []

    def open_page(
        served: Served,
        width: int = 1280,
        height: int = 900,
        now: int | None = None,
        **options: Any,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()

        def hear(message: ConsoleMessage) -> None:
            # A request that gets an HTTP error status is logged too. That is not an error of the
            # page.
            if message.type == "error" and "Failed to load resource" not in message.text:
                faults.append(message.text)

        page.on("console", hear)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.set_default_timeout(30_000)
        if now is not None:
            page.clock.set_fixed_time(now / 1000)
        page.goto(served.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not faults, faults
