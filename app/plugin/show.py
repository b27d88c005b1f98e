"""How an answer is printed: as a table, or as the API gave it; once, or whenever it changes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.plugin.door import TOO_MANY, Answer

LOOK_SECONDS = 2.0
"""Between two looks of --watch."""

OLD_SECONDS = 15.0
"""From when on it is said how old an answer is."""

WITHOUT_END = 1000
"""The width of what is no terminal: whoever reads it wants whole lines."""

JSON, YAML, WIDE, CSV = "json", "yaml", "wide", "csv"


@dataclass(frozen=True, slots=True)
class Look:
    """How to print: the form, "" for a table, and whether to go on watching."""

    form: str = ""
    watch: bool = False

    @property
    def wide(self) -> bool:
        """Tell whether a table shows all it has."""
        return self.form == WIDE


Fetch = Callable[[], tuple[Any, Answer]]
Draw = Callable[[Any, datetime], RenderableType]


def show(look: Look, fetch: Fetch, draw: Draw) -> None:
    """Fetch and print, once or until Ctrl-C. Raises what `fetch` does."""
    if look.watch:
        _watch(look, fetch, draw)
        return
    found, answer = fetch()
    _print(look, found, answer, draw)
    note = _note(found, answer)
    if note:
        tell(note)


def tell(sentence: str) -> None:
    """Say something that is not the result, or why there is none."""
    print(f"fairgate: {sentence}", file=sys.stderr)


def console() -> Console:
    """Return standard output: as wide as the terminal, or without end."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WITHOUT_END
    return Console(width=wide, highlight=False, markup=False, emoji=False)


def as_text(form: str, found: Any) -> str:
    """Return an answer as JSON or YAML, unchanged."""
    if form == JSON:
        return json.dumps(found, indent=2, ensure_ascii=False)
    import yaml

    return str(yaml.safe_dump(found, sort_keys=False, allow_unicode=True)).rstrip("\n")


def _print(look: Look, found: Any, answer: Answer, draw: Draw) -> None:
    if look.form in (JSON, YAML):
        print(as_text(look.form, found), flush=True)
        return
    out = console()
    if out.is_terminal:
        out.print(draw(found, answer.at))
        return
    with out.capture() as text:
        out.print(draw(found, answer.at))
    print("\n".join(line.rstrip() for line in text.get().splitlines()), flush=True)


def _note(found: Any, answer: Answer) -> str:
    if answer.age >= OLD_SECONDS:
        return f"this is as of {answer.age:.0f} s ago; Fairgate has seen nothing newer."
    if isinstance(found, dict) and found.get("continue"):
        return "there is more; raise --limit to see it."
    return ""


def _watch(look: Look, fetch: Fetch, draw: Draw) -> None:
    """Print anew whenever the answer changes. A network that is away is waited for."""
    out = console()
    live = Live(console=out, auto_refresh=False) if out.is_terminal and not _is_data(look) else None
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
                    live.update(draw(found, answer.at), refresh=True)
                elif found != last:
                    if last is not None and not _is_data(look):
                        print()
                    _print(look, found, answer, draw)
                last = found
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        if live:
            live.stop()


def _is_data(look: Look) -> bool:
    return look.form in (JSON, YAML)
