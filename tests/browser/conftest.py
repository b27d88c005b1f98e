"""Pages of their own, opened on a town; at the end nothing may have gone wrong in the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.browsing import browser
from tests.fakes.town import Served

__all__ = ["browser"]

Opens = Callable[..., Page]


@pytest.fixture
def opens(browser: Browser) -> Iterator[Opens]:
    """Open the page of a town in a context of its own; at the end, nothing may have gone wrong."""
    contexts = []
    faults: list[str] = []

    def open_page(
        served: Served,
        width: int = 1280,
        height: int = 900,
        now: int | None = None,
        **options: object,
    ) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()

        def hear(message: ConsoleMessage) -> None:
            # A request that is answered by a no is one of them, and no fault of the page.
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
