"""Sinks for copies of the audit chain's lines: standard output, and a folder of append-only files.

A failing sink is logged once and retried every second. Lines wait meanwhile, up to a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import Protocol

from app.core.audit.codec import missed_line, parse_line
from app.core.audit_entry import Entry
from app.core.errors import InvalidInput

MOST_LINES = 50_000
"""Maximum number of lines that wait for a sink."""

LINES_PER_WRITE = 256
GATHER_SECONDS = 0.2
"""How long a line waits for others, so that a thread writes them together."""

RETRY_SECONDS = 1.0
READ_SECONDS = 5.0
TAIL_BYTES = 256 * 1024
"""Number of bytes at the end of a file in which the last entry is searched."""

FILE_BYTES = 64 * 2**20

log = logging.getLogger("fairgate.audit")


@dataclass(frozen=True, slots=True)
class AuditLine:
    """A line with its entry number and epoch."""

    text: str
    number: int
    epoch: int


class Sink(Protocol):
    """Destination of lines."""

    def write(self, waiting: deque[AuditLine]) -> None:
        """Write up to AT_ONCE lines and remove each written line from `waiting`. Raises OSError."""

    def last_number(self) -> int | None:
        """Return the last entry's number, 0 without entries, None if unknown. Raises OSError."""


class Backlog:
    """`ports.audit.AuditSink`: lines that wait for one sink."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self._sink = sink
        self._waiting_lines: deque[AuditLine] = deque()
        self._missed_lines: list[AuditLine] = []
        self._missed_count = 0
        self._newest_number = 0
        self._has_lines = asyncio.Event()
        self._flush_requested = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._failing = False

    def write_line(self, line: str, number: int, epoch: int) -> None:
        """Queue a line. Lines beyond the limit are dropped; a later line reports their numbers."""
        new = AuditLine(line, number, epoch)
        self._newest_number = number
        if len(self._waiting_lines) >= MOST_LINES:
            if not self._missed_count:
                log.error("lines of the audit chain are left out", extra={"sink": self._name})
            self._missed_lines = [*self._missed_lines[:1], new]
            self._missed_count += 1
            return
        self._queue_missed_line()
        self._waiting_lines.append(new)
        self._empty.clear()
        self._has_lines.set()

    async def read_last_copied(self) -> int | None:
        """Return the number of the last written or queued entry, 0 if missing or unreadable."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                last = await asyncio.to_thread(self._sink.last_number)
        except OSError:  # TimeoutError is a subclass
            last = 0
        return None if last is None else max(last, self._newest_number)

    async def flush(self, seconds: float) -> None:
        """Wait until no line waits, at most `seconds` seconds."""
        self._flush_requested.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()

    async def write_lines(self) -> None:
        """Write until cancelled."""
        while True:
            await self._has_lines.wait()
            await self._wait_for_lines()
            self._has_lines.clear()
            while self._waiting_lines:
                try:
                    await asyncio.to_thread(self._sink.write, self._waiting_lines)
                    self._report_error(None)
                except OSError as error:
                    self._report_error(error)
                    await asyncio.sleep(RETRY_SECONDS)
                self._queue_missed_line()
            self._empty.set()

    async def _wait_for_lines(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                await self._flush_requested.wait()
        self._flush_requested.clear()

    def _queue_missed_line(self) -> None:
        if self._missed_count and len(self._waiting_lines) < MOST_LINES:
            first, last = self._missed_lines[0], self._missed_lines[-1]
            text = missed_line(self._missed_count, first.number, last.number)
            self._waiting_lines.append(AuditLine(text, first.number, last.epoch))
            self._missed_lines, self._missed_count = [], 0

    def _report_error(self, error: OSError | None) -> None:
        if error is not None and not self._failing:
            facts = {"sink": self._name, "why": str(error)}
            log.error("the audit chain cannot be copied; it is tried again", extra=facts)
        elif error is None and self._failing:
            log.info("the audit chain is copied again", extra={"sink": self._name})
        self._failing = error is not None


class Descriptor:
    """An open file for lines, written by as few calls as possible.

    The rest of a partly written line is written first.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._partial_line = b""

    def write(self, waiting: deque[AuditLine]) -> None:
        """Write up to AT_ONCE lines and remove each written line from `waiting`. Raises OSError."""
        count = min(LINES_PER_WRITE, len(waiting))
        texts = [waiting[i].text.encode() + b"\n" for i in range(count)]
        texts[0] = self._partial_line or texts[0]
        left = b"".join(texts)
        while left:
            written = os.write(self._descriptor, left)
            for _ in range(left.count(b"\n", 0, written)):
                waiting.popleft()
            left = left[written:]
            self._partial_line = left[: left.find(b"\n") + 1]

    def last_number(self) -> None:
        """Return None: the fate of written lines is unknown."""


class AuditFolder:
    """Files in one folder, ordered by name. A new one starts per term and after FILE_BYTES."""

    def __init__(self, folder: Path, max_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._descriptor: int | None = None
        self._file = Descriptor(-1)
        self._epoch = -1

    def write(self, waiting: deque[AuditLine]) -> None:
        """Write up to AT_ONCE lines of one term, and wait until they are on disk."""
        first = waiting[0]
        if first.epoch != self._epoch or self._descriptor is None or self._is_full():
            self._open(first)
        assert self._descriptor is not None
        some = list(
            islice(waiting, LINES_PER_WRITE)
        )  # a copy, because the event loop appends meanwhile
        queue_key = deque(takewhile(lambda line: line.epoch == first.epoch, some))
        before = len(queue_key)
        try:
            self._file.write(queue_key)
        finally:
            for _ in range(before - len(queue_key)):
                waiting.popleft()
        os.fsync(self._descriptor)

    def last_number(self) -> int:
        """Return the last entry of the newest file with one, 0 without any. Raises OSError."""
        for path in sorted(self._folder.glob("audit-*.ndjson"), reverse=True):
            for text in reversed(_last_lines(path)):
                with contextlib.suppress(InvalidInput):
                    if isinstance(found := parse_line(text), Entry):
                        return found.number
        return 0

    def _is_full(self) -> bool:
        assert self._descriptor is not None
        return os.fstat(self._descriptor).st_size >= self._max_bytes

    def _open(self, line: AuditLine) -> None:
        path = self._folder / f"audit-{line.epoch:010}-{line.number:016}.ndjson"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._epoch = descriptor, line.epoch
        self._file = Descriptor(descriptor)
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _last_lines(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


def standard_output_sink() -> Sink:
    """Return the sink for standard output."""
    return Descriptor(1)
