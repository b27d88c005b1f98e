"""A real browser: Debian's chromium, driven by Playwright.

Where there is none the tests are skipped; with REQUIRE_CLUSTER=1 they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

expect.set_options(timeout=30_000)

ARGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
"""Without a sandbox, because tests may run as root; they open no page but ours."""


# Not for the session: while it runs, Playwright's own loop stands in the way of tests with another.
@pytest.fixture(scope="module")
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
