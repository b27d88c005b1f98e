"""A real browser: Debian's chromium, driven by Playwright.

Where there is none the tests are skipped; with REQUIRE_CLUSTER=1 they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.fakes.town import Served

expect.set_options(timeout=30_000)

ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""Without a sandbox, because tests may run as root; they open no page but ours."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        reason = "no chromium on this machine; make browser installs it (Debian's package)"
        if os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0"):
            pytest.fail(f"A browser is required: {reason}", pytrace=False)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGS)
        yield browser
        browser.close()


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
