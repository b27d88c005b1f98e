"""Starts a real browser: Debian's chromium, driven by Playwright.

If chromium is missing, the tests are skipped. If REQUIRE_CLUSTER=1 is set, they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=30_000)

PROGRAMS = ("chromium-headless-shell", "chromium")
"""The first one that is installed is used. Tests with the headless shell take half the CPU time."""

ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""The sandbox is off because tests may run as root. Tests open only pages of Fairgate."""


# The fixture is not session-scoped: a running Playwright loop blocks tests that use another event
# loop.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield a headless browser."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        reason = "no chromium on this machine; make browser installs it (Debian's package)"
        if os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0"):
            pytest.fail(f"A browser is required: {reason}", pytrace=False)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGS)
        yield browser
        browser.close()
