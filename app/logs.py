"""How Fairgate logs: one JSON object a line, or short lines for a person at a terminal.

A log call is one fixed message and facts in `extra`; this module only lays them out.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TextIO

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record carries; all else was given as `extra`."""

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m", "DEBUG": "\033[2m"}
_RESET = "\033[0m"


def set_up(level: str, stream: TextIO | None = None) -> None:
    """Send every log record of `level` (debug, info, warning or error) and above to `stream`.

    The stream is stderr unless given; a terminal gets the human format. Calling it again replaces
    what was set up before.
    """
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(Human() if target.isatty() else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries speak up when something is wrong; what they do all day is not our news.
    for library in ("uvicorn", "asyncio", "kubernetes", "urllib3", "aiohttp"):
        logging.getLogger(library).setLevel(logging.WARNING)


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """Return what the caller gave as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _PLAIN}


class Lines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, then `facts` and `error` if any."""

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
        # Escaped to ASCII: what users wrote may hold half a surrogate pair, which is no UTF-8.
        return json.dumps(line, default=str)


class Human(logging.Formatter):
    """Short coloured lines for a terminal: time of day, message, facts."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        colour = _COLOURS.get(record.levelname, "")
        facts = "".join(f"  {key}={value}" for key, value in facts_of(record).items())
        room = record.name.removeprefix("fairgate.")
        line = f"{clock} {colour}{room}: {record.getMessage()}{_RESET if colour else ''}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
