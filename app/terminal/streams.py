"""Standard input and output of both programs when they are closed, full or not UTF-8."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from typing import Any, BinaryIO

from app.core.errors import FairgateError, InvalidInput

PIPE_CLOSED = 141
"""Exit code if the reader of the output has gone. It is 128 + SIGPIPE, as of other programs."""

_UNWRITABLE = (EBADF, EDQUOT, EFBIG, EIO, ENOSPC)
"""Reasons why a stream cannot be written that lie in the machine, not in the program."""


_CLOSED = "Standard input is closed; give a file, or open it."


class OutputUnwritable(FairgateError):
    """The output cannot be written."""


class ClosedInput(io.TextIOBase):
    """Standard input of a process that was started without one. No read succeeds."""

    @property
    def buffer(self) -> BinaryIO:
        """Raise InvalidInput, as each read does."""
        raise InvalidInput(_CLOSED)

    def read(self, size: int | None = -1, /) -> str:
        """Raise InvalidInput."""
        raise InvalidInput(_CLOSED)

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """Raise InvalidInput."""
        return self.read(size)


def run_with_streams(command: Callable[[], Any]) -> None:
    """Run a command, and write all its output. Raises OutputUnwritable, BrokenPipeError."""
    if sys.stdin is None:
        sys.stdin = ClosedInput()
    replace_unencodable(sys.stdout)
    try:
        try:
            command()
        except SystemExit as leaving:
            if isinstance(leaving.__context__, BrokenPipeError):  # typer makes 1 of it
                raise leaving.__context__ from None
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        raise
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _discard(sys.stdout)
        raise OutputUnwritable(f"The output cannot be written: {error.strerror}.") from error


def replace_unencodable(stream: Any) -> None:
    """Let a stream write `?` for characters that its encoding lacks, in place of an error."""
    if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def _discard(stream: Any) -> None:
    """Drop the rest of the output. Otherwise Python writes it at the end, and fails again."""
    with suppress(OSError, AttributeError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
