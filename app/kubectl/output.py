"""Prints an answer in the output format, once or whenever it changes (`--watch`)."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.safe_text import escape_hidden, escape_hidden_in_json
from app.kubectl.client import TOO_MANY, ApiAnswer
from app.terminal.output import Listing, OutputOptions, as_text, warn
from app.terminal.text import Block, Group, Page, as_block

WATCH_SECONDS = 2.0
"""Time between two requests of --watch."""

OLD_SECONDS = 15.0
"""Age of an answer from which the output states it."""

PIPE_WIDTH = 1000
"""Line width of files and pipes: their lines are never wrapped."""


MORE = "there is more; raise --limit to see it."
MAY_BE_MORE = "there may be more in other queues; raise --limit to see it."

Fetch = Callable[[], tuple[Any, ApiAnswer]]
Draw = Callable[[Any, datetime], Block | str]


def show(output: OutputOptions, fetch: Fetch, draw: Draw, listing: Listing | None = None) -> None:
    """Fetch and print, once or until Ctrl-C. Raises the errors of `fetch`.

    `draw` makes the table, and `listing` names the items for CSV and names.
    """
    if output.watch:
        _watch(output, fetch, draw, listing)
        return
    found, answer = fetch()
    _print(output, found, answer, draw, listing)
    for note in _notes(found, answer):
        warn(note)


def write(block: Block | str, output: OutputOptions | None = None) -> None:
    """Print text on standard output, in the width of the terminal if there is one."""
    print(_text(block, output), flush=True)


def _text(block: Block | str, output: OutputOptions | None) -> str:
    is_terminal = sys.stdout.isatty()
    has_width = is_terminal or os.environ.get("COLUMNS")
    page = Page(
        shutil.get_terminal_size().columns if has_width else PIPE_WIDTH,
        styles=is_terminal and os.environ.get("TERM", "dumb") != "dumb",
        has_heads=output is None or not output.no_headers,
    )
    return "\n".join(as_block(block).lines(page))


def _print(
    output: OutputOptions, found: Any, answer: ApiAnswer, draw: Draw, listing: Listing | None
) -> None:
    if output.is_data:
        if text := as_text(output, found, listing):  # no names, or CSV without rows
            print(text, flush=True)
    else:
        write(draw(escape_hidden_in_json(found), answer.at), output)


def _notes(found: Any, answer: ApiAnswer) -> list[str]:
    return [note for note in dict.fromkeys((*answer.warnings, _note(found, answer))) if note]


def _note(found: Any, answer: ApiAnswer) -> str:
    if answer.age >= OLD_SECONDS:
        return f"this is as of {answer.age:.0f} s ago; Fairgate has seen nothing newer."
    if isinstance(found, dict) and found.get("more"):
        return "there are older entries; raise --limit (10000 at most), or set --until."
    if isinstance(found, dict) and found.get("continue"):
        return MORE
    return ""


def _watch(output: OutputOptions, fetch: Fetch, draw: Draw, listing: Listing | None) -> None:
    """Print again whenever the answer changes. Wait while the network is unreachable.

    In a terminal notes are below the table. Otherwise each new warning is printed once.
    """
    from rich.live import Live  # heavy
    from rich.text import Text

    live = Live(auto_refresh=False) if sys.stdout.isatty() and not output.is_data else None
    last: Any = None
    warnings: tuple[str, ...] = ()
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
                    told = f"{escape_hidden(str(error))} Trying again; Ctrl-C ends it."
                    live.update(Text(told), refresh=True)
                last = ()
            else:
                if live:
                    notes = map(escape_hidden, _notes(found, answer))
                    shown = _text(
                        Group(draw(escape_hidden_in_json(found), answer.at), *notes), output
                    )
                    live.update(Text.from_ansi(shown, no_wrap=True, overflow="crop"), refresh=True)
                elif found != last:
                    if last is not None and not output.is_data:
                        print()
                    _print(output, found, answer, draw, listing)
                for warning in answer.warnings if not live else ():
                    if warning not in warnings:
                        warn(warning)
                last, warnings = found, answer.warnings
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        if live:
            live.stop()
