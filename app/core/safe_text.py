"""Makes text of users safe to show in terminals, logs, events and CSV files.

Control characters move the cursor of a terminal and start its commands. Bidirectional characters
make a name look like another one. Both are shown as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""C0 and C1, bidirectional marks, overrides and isolates, zero width, lone surrogates."""

_FORMULA = re.compile("^[\\s'\ufeff]*[=+\\-@|%\uff1d\uff0b\uff0d\uff20]")
"""A cell that a spreadsheet may take for a formula, also after spaces and in full width."""


def visible(text: str) -> str:
    """Return a text with its hidden characters as escapes, such as `\\u202e`."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def all_visible(found: Any) -> Any:
    """Return decoded JSON with every text in it `visible`, keys included."""
    match found:
        case str():
            return visible(found)
        case Mapping():
            return {visible(str(key)): all_visible(value) for key, value in found.items()}
        case list() | tuple():
            return [all_visible(each) for each in found]
        case _:
            return found


def csv_cell(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet takes for a formula.

    A formula is prefixed with a single quote, as OWASP recommends. Numbers need no such cell.
    """
    is_formula = _FORMULA.match(text) is not None or text[:1] in ("\t", "\r", "\n")
    shown = visible(text)
    return f"'{shown}" if is_formula else shown
