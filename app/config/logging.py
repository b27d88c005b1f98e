"""Log formatters: JSON lines, or short lines for a terminal.

A log call has one fixed message, with facts in `extra`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

from app.core.safe_text import escape_hidden

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every record. All others were passed in `extra`."""

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m", "DEBUG": "\033[2m"}
_RESET = "\033[0m"


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send every log record of `level` (debug, info, warning or error) and above to `stream`.

    The default stream is stderr. A terminal gets the short format. A second call replaces the first
    set-up.
    """
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(Human() if target.isatty() else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries log warnings and errors only. Their routine messages are noise here.
    for library in ("uvicorn", "asyncio", "kubernetes", "urllib3", "aiohttp"):
        logging.getLogger(library).setLevel(logging.WARNING)


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the facts that the caller passed in `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, `facts` and `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = facts_of(record)
        if facts:
            line["facts"] = facts
        if record.exc_info and record.exc_info[0]:
            line["error"] = {
                "type": record.exc_info[0].__name__,
                "message": str(record.exc_info[1]),
                "traceback": self.formatException(record.exc_info),
            }
        # ASCII only: text of users may contain lone surrogates, which UTF-8 cannot encode.
        return json.dumps(line, default=str)


class Human(logging.Formatter):
    """Short coloured lines for a terminal: time of day, message, facts."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        colour = _COLOURS.get(record.levelname, "")
        facts = "".join(
            f"  {key}={escape_hidden(str(value))}" for key, value in facts_of(record).items()
        )
        room = record.name.removeprefix("fairgate.")
        message = escape_hidden(record.getMessage())
        line = f"{clock} {colour}{room}: {message}{_RESET if colour else ''}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
