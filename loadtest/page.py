"""Time from the event `state` to the complete first view of the page, in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from playwright.sync_api import Browser, sync_playwright

from app.core.errors import InvalidInput
from app.core.events import ClusterEvent
from app.devcluster.progress import ConsoleProgress
from loadtest.figures import Compared, Measure, Series, Target
from tests.browser.large_cluster import TENANTS, large_cluster
from tests.browser.signed_in import LED, QUICK, TEAMS, large, sign_in
from tests.fakes.fake_api_cluster import ApiCluster, Served, served
from tests.support.browser import ARGS

NAME = "page"
ROUNDS = 5
PAGE_ROWS = 60
MOST_MS = Target(most=1000)

ARMS: dict[str, tuple[Callable[[], list[ClusterEvent]], int]] = {
    "500 GPUs, 25 tenants, 100 queues": (large, TEAMS),
    "8 000 GPUs, 100 tenants, 2 000 queues": (large_cluster, min(TENANTS, PAGE_ROWS)),
}
"""Events of the cluster, and the rows of the first view."""

WATCH = """
    const parse = JSON.parse;
    JSON.parse = (text, ...rest) => {
        if (window.began === undefined && text.includes('"leftOut"')) {
            window.began = performance.now();
        }
        return parse(text, ...rest);
    };
    window.complete = (rows) => new Promise((done, fail) => {
        const end = performance.now() + 120_000;
        const look = () => {
            const found = document.querySelectorAll("#tenant-rows tr").length;
            if (found >= rows) requestAnimationFrame(() => done(performance.now() - window.began));
            else if (performance.now() < end) requestAnimationFrame(look);
            else fail(new Error(`${found} of ${rows} rows after 120 s`));
        };
        look();
    });
"""
"""Remembers when the page parses the first state. `complete` returns milliseconds, or fails."""


def measure(progress: ConsoleProgress, pods: int | None, rounds: int | None) -> Measure:
    """Sign in repeatedly. `pods` has no effect. Raises InvalidInput without a browser."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if program is None:
        raise InvalidInput("The measure page needs chromium; make browser installs it.")
    taken: dict[str, tuple[float, ...]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGS)
        for arm, (events, rows) in ARMS.items():
            with (
                progress.step(f"page: {arm}"),
                served(ApiCluster(leader_message=LED), QUICK) as place,
            ):
                place.deliver(*events())
                turns = range(rounds or ROUNDS)
                taken[arm] = tuple(_first_view(browser, place, rows) for _ in turns)
        browser.close()
    return Measure(
        NAME,
        "First view of the page",
        (
            "From the event `state` of the stream to the frame with the last row of the tenants, "
            "in a headless chromium without GPU at 1440 by 900, each time in a new browser "
            "context. The server of the page runs in the same process.",
        ),
        (),
        tuple(Compared(Series(arm, "ms", values), MOST_MS) for arm, values in taken.items()),
    )


def _first_view(browser: Browser, place: Served, rows: int) -> float:
    """Return the milliseconds of one sign-in."""
    with browser.new_context(viewport={"width": 1440, "height": 900}) as context:
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.add_init_script(WATCH)
        page.goto(place.url)
        sign_in(page)
        return float(page.evaluate("rows => window.complete(rows)", rows))
