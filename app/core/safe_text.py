"""Makes text of users safe to show in terminals, logs, events and CSV files.

Control characters move the cursor of a terminal and start its commands. Bidirectional characters
make a name look like another one. Characters without a shape hide text from people, but not from
language models. All are shown as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""C0 and C1, line separators, lone surrogates, interlinear marks, and all that Unicode lists as
Default_Ignorable_Code_Point: bidirectional marks, zero width, tags, variation selectors.
https://www.unicode.org/Public/UCD/latest/ucd/DerivedCoreProperties.txt"""

_FORMULA = re.compile("^[\\s'\ufeff]*[=+\\-@|%\uff1d\uff0b\uff0d\uff20]")
"""A cell that a spreadsheet may take for a formula, also after spaces and in full width."""


def escape_hidden(text: str) -> str:
    """Return a text with its hidden characters as escapes, such as `\\u202e`."""
    return _HIDDEN.sub(lambda found: _escape(ord(found[0])), text)


def quote_text(text: str, most: int = 40) -> str:
    """Return the beginning of a text in quotes, `most` characters and the quotes at most.

    Hidden characters are escapes, which count in full.
    """
    shown = escape_hidden(repr(text[:most]))
    return shown if len(shown) <= most + 2 else f"{shown[:most]}…{shown[0]}"


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def escape_hidden_in_json(found: Any) -> Any:
    """Return decoded JSON with every text in it `escape_hidden`, keys included."""
    match found:
        case str():
            return escape_hidden(found)
        case Mapping():
            return {
                escape_hidden(str(key)): escape_hidden_in_json(value)
                for key, value in found.items()
            }
        case list() | tuple():
            return [escape_hidden_in_json(each) for each in found]
        case _:
            return found


def csv_cell(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet takes for a formula.

    A formula is prefixed with a single quote, as OWASP recommends. Numbers need no such cell.
    """
    is_formula = _FORMULA.match(text) is not None or text[:1] in ("\t", "\r", "\n")
    shown = escape_hidden(text)
    return f"'{shown}" if is_formula else shown
