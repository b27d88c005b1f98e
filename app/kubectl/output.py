"""Prints an answer in the output format, once or whenever it changes (`--watch`)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.safe_text import all_visible, visible
from app.kubectl.client import TOO_MANY, ApiAnswer
from app.terminal.output import Listing, OutputOptions, as_text
from app.terminal.table import TableConsole

WATCH_SECONDS = 2.0
"""Time between two requests of --watch."""

OLD_SECONDS = 15.0
"""Age of an answer from which the output states it."""

PIPE_WIDTH = 1000
"""Line width of files and pipes: their lines are never wrapped."""


Fetch = Callable[[], tuple[Any, ApiAnswer]]
Draw = Callable[[Any, datetime], RenderableType]


def show(output: OutputOptions, fetch: Fetch, draw: Draw, listing: Listing | None = None) -> None:
    """Fetch and print, once or until Ctrl-C. Raises the errors of `fetch`.

    `draw` makes the table, and `listing` names the items for CSV and names.
    """
    if output.watch:
        _watch(output, fetch, draw, listing)
        return
    found, answer = fetch()
    _print(output, found, answer, draw, listing)
    note = _note(found, answer)
    if note:
        warn(note)


def warn(sentence: str) -> None:
    """Print a message that is not the result to standard error."""
    print(f"fairgate: {visible(sentence)}", file=sys.stderr)


def console(output: OutputOptions | None = None) -> TableConsole:
    """Return a console on standard output. Its width is that of the terminal, if there is one."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return TableConsole(
        width=wide,
        highlight=False,
        markup=False,
        emoji=False,
        has_heads=output is None or not output.no_headers,
    )


def _print(
    output: OutputOptions, found: Any, answer: ApiAnswer, draw: Draw, listing: Listing | None
) -> None:
    if output.is_data:
        print(as_text(output, found, listing), flush=True)
        return
    found = all_visible(found)
    out = console(output)
    if out.is_terminal:
        out.print(draw(found, answer.at), crop=False)
        return
    with out.capture() as text:
        out.print(draw(found, answer.at), crop=False)
    print("\n".join(line.rstrip() for line in text.get().splitlines()), flush=True)


def _note(found: Any, answer: ApiAnswer) -> str:
    if answer.age >= OLD_SECONDS:
        return f"this is as of {answer.age:.0f} s ago; Fairgate has seen nothing newer."
    if isinstance(found, dict) and found.get("continue"):
        return "there is more; raise --limit to see it."
    return ""


def _watch(output: OutputOptions, fetch: Fetch, draw: Draw, listing: Listing | None) -> None:
    """Print again whenever the answer changes. Wait while the network is unreachable."""
    out = console(output)
    live = Live(console=out, auto_refresh=False) if out.is_terminal and not output.is_data else None
    last: Any = None
    try:
        if live:
            live.start()
        while True:
            try:
                found, answer = fetch()
            except (ClusterUnavailable, ClusterRefused) as error:
                busy = isinstance(error, ClusterUnavailable) or error.status == TOO_MANY
                if last is None or not busy:
                    raise
                if live:
                    live.update(Text(f"{error} Trying again; Ctrl-C ends it."), refresh=True)
                last = ()
            else:
                if live:
                    live.update(draw(all_visible(found), answer.at), refresh=True)
                elif found != last:
                    if last is not None and not output.is_data:
                        print()
                    _print(output, found, answer, draw, listing)
                last = found
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        if live:
            live.stop()
