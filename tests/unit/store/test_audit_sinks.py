"""The copies of the audit chain in files and on standard output, also if the disk fails."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.audit.codec import entry_line
from app.core.audit_entry import AuditRecord, EntryType, Head, seal
from app.core.model import Millis
from app.store import audit_sinks
from app.store.audit_sinks import AuditFolder, AuditLine, Backlog, Descriptor, Sink


@asynccontextmanager
async def running(sink: Sink) -> AsyncIterator[Backlog]:
    backlog = Backlog("here", sink)
    task = asyncio.create_task(backlog.write_lines())
    try:
        yield backlog
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


class Disk:
    """A sink that is full until `full` is cleared."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.full = True
        self.tries = 0

    def last_number(self) -> int | None:
        if self.full:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return len(self.lines)

    def write(self, waiting: deque[AuditLine]) -> None:
        self.tries += 1
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while waiting:
            self.lines.append(waiting.popleft().text)


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_each_term_has_its_own_files_sorted_by_name(tmp_path: Path) -> None:
    async with running(AuditFolder(tmp_path)) as backlog:
        for number, epoch in ((1, 9), (2, 9), (2, 10), (3, 10)):
            backlog.write_line(f"{epoch}.{number}", number, epoch)
        await backlog.flush(20)
    first, second = sorted(tmp_path.iterdir())
    assert first.name == "audit-0000000009-0000000000000001.ndjson"
    assert first.read_text() == "9.1\n9.2\n"
    assert second.read_text() == "10.2\n10.3\n"


async def test_a_file_that_is_large_enough_is_left_for_another(tmp_path: Path) -> None:
    async with running(AuditFolder(tmp_path, max_bytes=10)) as backlog:
        for number in range(3):
            backlog.write_line("x" * 10, number, 1)
            await backlog.flush(20)
    assert len(files(tmp_path)) == 3


def test_lines_can_be_added_while_the_folder_sink_writes(tmp_path: Path) -> None:
    waiting: deque[AuditLine] = deque()

    class Restless(AuditLine):
        """A line that adds another line while it is written."""

        def __getattribute__(self, name: str) -> object:
            if name == "epoch":
                waiting.append(AuditLine("later", 9, 1))
            return super().__getattribute__(name)

    waiting += [Restless("one", 1, 1), Restless("two", 2, 1)]
    AuditFolder(tmp_path).write(waiting)
    (path,) = tmp_path.iterdir()
    assert path.read_text().splitlines()[:2] == ["one", "two"]


async def test_a_file_is_only_appended_to(tmp_path: Path) -> None:
    for text in ("one", "two"):
        async with running(AuditFolder(tmp_path)) as backlog:
            backlog.write_line(text, 1, 1)
            await backlog.flush(20)
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "one\ntwo\n"


async def test_lines_wait_for_a_folder_that_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    async with running(AuditFolder(folder)) as backlog:
        backlog.write_line("one", 1, 1)
        await until(lambda: bool(caplog.records))
        folder.mkdir()
        await backlog.flush(20)
    assert [each.read_text() for each in folder.iterdir()] == ["one\n"]


async def test_full_disk_is_logged_once_and_the_write_is_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    async with running(disk) as backlog:
        backlog.write_line("one", 1, 1)
        await until(lambda: disk.tries >= 3)
        disk.full = False
        backlog.write_line("two", 2, 1)
        await backlog.flush(20)
    assert disk.lines == ["one", "two"]
    assert [each.levelname for each in caplog.records if "copied" in each.message] == ["ERROR"]


async def test_lines_beyond_the_bound_are_named_by_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    async with running(disk) as backlog:
        for number in range(audit_sinks.MOST_LINES + 5):
            backlog.write_line("x", number + 1, 1)
        disk.full = False
        await backlog.flush(20)
        backlog.write_line("y", audit_sinks.MOST_LINES + 6, 1)
        await backlog.flush(20)
    missed = (
        f'{{"entries":5,"from":{audit_sinks.MOST_LINES + 1},"to":{audit_sinks.MOST_LINES + 5}}}'
    )
    assert disk.lines[audit_sinks.MOST_LINES :] == [f'{{"audit":true,"missed":{missed}}}', "y"]


async def test_folder_sink_reports_the_last_entry_copied_or_queued(tmp_path: Path) -> None:
    async with running(AuditFolder(tmp_path)) as backlog:
        assert await backlog.read_last_copied() == 0
        for number, epoch in ((8, 9), (9, 9), (7, 10)):
            entry = seal(Head(number - 1), epoch, AuditRecord(Millis(1), EntryType.HELD))
            backlog.write_line(entry_line(entry), number, epoch)
        await backlog.flush(20)
        for path in tmp_path.iterdir():
            with path.open("a") as file:
                file.write('{"audit":true,"number":99')
        (tmp_path / "audit-0000000011-0000000000000100.ndjson").write_text('{"audit":tr')
        assert await Backlog("another process", AuditFolder(tmp_path)).read_last_copied() == 7
        backlog.write_line("more", 12, 10)
        assert await backlog.read_last_copied() == 12


async def test_sink_without_a_readable_position_returns_none_or_zero() -> None:
    assert (
        await Backlog("standard output", audit_sinks.standard_output_sink()).read_last_copied()
        is None
    )
    assert await Backlog("a disk that is ill", Disk()).read_last_copied() == 0


def test_rest_of_a_partial_line_is_written_before_the_next_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    file, waiting = (
        Descriptor(writing),
        deque([AuditLine("a" * 70_000, 1, 1), AuditLine("b", 2, 1)]),
    )
    with pytest.raises(BlockingIOError):
        file.write(waiting)
    assert len(waiting) == 2
    read = os.read(reading, 100_000)
    file.write(waiting)
    assert (read + os.read(reading, 100_000)).decode() == "a" * 70_000 + "\nb\n"
    os.close(reading)
    os.close(writing)
