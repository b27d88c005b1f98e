"""How far a long run of requests is, on standard error: a bar for people, else a line at times."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WORTH_SHOWING_SECONDS = 2.0
"""A run shorter than this shows nothing."""

REFRESH_SECONDS = 0.2
LINE_SECONDS = 10.0


class Bar:
    """Shows `done` of `total` things. Enter it for the run; `tell` as often as you like."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._next = clock() + WORTH_SHOWING_SECONDS
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None)

    def tell(self, what: str, done: int, total: int | None = None) -> None:
        """So much is done now; without a total nobody knows how much there is."""
        now = self._clock()
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._next = now + LINE_SECONDS
            of = f" of {total}" if total is not None else ""
            self._console.print(f"{what}: {done}{of}", highlight=False, soft_wrap=True)
            return
        self._next = now + REFRESH_SECONDS
        self._bar.start()
        self._bar.tasks[0].total = total  # `update` cannot take a total away
        self._bar.update(self._task, description=what, completed=done, refresh=True)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
