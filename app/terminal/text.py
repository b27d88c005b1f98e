"""Text for a terminal: sentences that wrap between words, bold and dim texts, and groups.

The package `rich` can do more. Its import and layout take long at the start of each command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_CODES = {"bold": "\x1b[1m", "dim": "\x1b[2m"}
_END = "\x1b[0m"
_NO_WIDTH = ("Mn", "Me", "Cf")
"""Unicode categories of characters that take no cell of a terminal."""


@dataclass(frozen=True, slots=True)
class Page:
    """The width of the output in cells, and whether bold and dim are possible."""

    width: int
    styles: bool = False
    has_heads: bool = True
    """Whether tables have the heads of their columns."""

    def styled(self, text: str, style: str) -> str:
        """Return the text in a style: `bold`, `dim` or empty."""
        return f"{_CODES[style]}{text}{_END}" if self.styles and style and text else text


class Block(Protocol):
    """A part of a page."""

    def lines(self, page: Page) -> Iterator[str]:
        """Yield the lines, without spaces at their ends."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """A text that continues on the next line. `style`: `bold`, `dim` or empty."""

    content: str
    style: str = ""

    def lines(self, page: Page) -> Iterator[str]:
        """Yield the lines."""
        for line in wrapped(self.content, page.width):
            yield page.styled(line, self.style)


class Group:
    """Blocks and texts below each other."""

    def __init__(self, *parts: Block | str) -> None:
        self._parts = parts

    def lines(self, page: Page) -> Iterator[str]:
        """Yield the lines of each part."""
        for each in self._parts:
            yield from as_block(each).lines(page)


def as_block(part: Block | str) -> Block:
    """Return the part itself, or a text as a block."""
    return Text(part) if isinstance(part, str) else part


def cell_len(text: str) -> int:
    """Return the number of terminal cells that a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text. Only a word that is longer than `width` is cut."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in re.findall(r"\s*\S+\s*", paragraph):
            if line and cell_len(line + word.rstrip()) > width:
                lines.append(line.rstrip())
                line = ""
            while cell_len(word.rstrip()) > width:
                end = _fitting(word, width)
                lines.append(word[:end])
                word = word[end:]
            line += word
        lines.append(line.rstrip())
    return lines


def _fitting(text: str, width: int) -> int:
    """Return how many characters fit, at least one."""
    used = 0
    for i, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return max(i, 1)
    return len(text)
