"""Progress bar for long runs on standard error, shown only on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from app.core.model import Millis

WORTH_SHOWING_SECONDS = 2.0
"""A shorter run shows no bar."""

REFRESH_SECONDS = 0.2


@contextmanager
def progress(
    what: str,
    start: Millis,
    end: Millis,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Callable[[Millis], None]]:
    """Show a run from `start` to `end`; call the yielded function with the time reached."""
    shown = console or Console(stderr=True)
    if not shown.is_terminal:
        yield lambda at: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=shown,
        transient=True,
        auto_refresh=False,
    )
    task = bar.add_task(what, total=max(1, end - start))
    next_look = clock() + WORTH_SHOWING_SECONDS

    def tell(at: Millis) -> None:
        nonlocal next_look
        now = clock()
        if now >= next_look:
            next_look = now + REFRESH_SECONDS
            bar.start()
            bar.update(task, completed=at - start, refresh=True)

    try:
        yield tell
    finally:
        bar.stop()
