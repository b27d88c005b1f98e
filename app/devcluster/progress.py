"""Progress lines of long steps: name, usual duration and elapsed time, on standard error."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

LINE_SECONDS = 30.0
"""Interval of the lines of one step without a terminal."""

WORTH_TELLING_SECONDS = 2.0


class SetupProgress(Protocol):
    """Reports the steps of a long task. Steps never overlap."""

    def step(self, what: str, usually: str = "") -> AbstractContextManager[None]:
        """Report the step `what` while the block runs; `usually` is its usual duration."""


class NoProgress:
    """Reports no progress."""

    @contextmanager
    def step(self, what: str, usually: str = "") -> Iterator[None]:
        yield


class ConsoleProgress:
    """Reports to a console: a live line in a terminal, otherwise a line per interval."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    @contextmanager
    def step(self, what: str, usually: str = "") -> Iterator[None]:
        began = time.monotonic()
        sentence = f"{what} (usually {usually})" if usually else what
        live = self._live if self._console.is_terminal else self._lines
        with live(sentence, began):
            yield
        took = time.monotonic() - began
        if usually or took >= WORTH_TELLING_SECONDS or not self._console.is_terminal:
            self._console.print(f"{what}: done in {took:.1f} s", highlight=False, soft_wrap=True)

    @contextmanager
    def _live(self, sentence: str, began: float) -> Iterator[None]:
        spinner = Spinner("dots")

        def line() -> Spinner:
            elapsed = time.monotonic() - began
            spinner.update(text=Text(f"{sentence} … {elapsed:.0f} s"))
            return spinner

        with Live(console=self._console, get_renderable=line, transient=True):
            yield

    @contextmanager
    def _lines(self, sentence: str, began: float) -> Iterator[None]:
        done = threading.Event()

        def print_line() -> None:
            while not done.wait(LINE_SECONDS):
                elapsed = time.monotonic() - began
                self._console.print(
                    f"{sentence} … {elapsed:.0f} s", highlight=False, soft_wrap=True
                )

        if "usually" in sentence:
            self._console.print(f"{sentence} …", highlight=False, soft_wrap=True)
        teller = threading.Thread(target=print_line, daemon=True)
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
