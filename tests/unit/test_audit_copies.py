"""The copies of the audit chain: files and standard output, whatever becomes of the disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.core.audit import Deed, Head, Record, seal
from app.core.chain.audit_lines import line
from app.core.model import Millis
from app.store import outlet
from app.store.outlet import Backlog, Descriptor, Folder, Line, Sink


@asynccontextmanager
async def running(sink: Sink) -> AsyncIterator[Backlog]:
    backlog = Backlog("here", sink)
    task = asyncio.create_task(backlog.run())
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
    """A sink that is full until told otherwise."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.full = True
        self.tries = 0

    def last(self) -> int | None:
        if self.full:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return len(self.lines)

    def write(self, waiting: deque[Line]) -> None:
        self.tries += 1
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        while waiting:
            self.lines.append(waiting.popleft().text)


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def test_a_term_has_files_of_its_own_in_the_order_of_names(tmp_path: Path) -> None:
    async with running(Folder(tmp_path)) as backlog:
        for number, epoch in ((1, 9), (2, 9), (2, 10), (3, 10)):
            backlog.put(f"{epoch}.{number}", number, epoch)
        await backlog.flush(20)
    first, second = sorted(tmp_path.iterdir())
    assert first.name == "audit-0000000009-0000000000000001.ndjson"
    assert first.read_text() == "9.1\n9.2\n"
    assert second.read_text() == "10.2\n10.3\n"


async def test_a_file_that_is_large_enough_is_left_for_another(tmp_path: Path) -> None:
    async with running(Folder(tmp_path, most=10)) as backlog:
        for number in range(3):
            backlog.put("x" * 10, number, 1)
            await backlog.flush(20)
    assert len(files(tmp_path)) == 3


def test_lines_may_come_while_a_folder_is_written(tmp_path: Path) -> None:
    waiting: deque[Line] = deque()

    class Restless(Line):
        """A line during whose turn another comes."""

        def __getattribute__(self, name: str) -> object:
            if name == "epoch":
                waiting.append(Line("later", 9, 1))
            return super().__getattribute__(name)

    waiting += [Restless("one", 1, 1), Restless("two", 2, 1)]
    Folder(tmp_path).write(waiting)
    (path,) = tmp_path.iterdir()
    assert path.read_text().splitlines()[:2] == ["one", "two"]


async def test_a_file_is_only_appended_to(tmp_path: Path) -> None:
    for text in ("one", "two"):
        async with running(Folder(tmp_path)) as backlog:
            backlog.put(text, 1, 1)
            await backlog.flush(20)
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "one\ntwo\n"


async def test_lines_wait_for_a_folder_that_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    async with running(Folder(folder)) as backlog:
        backlog.put("one", 1, 1)
        await until(lambda: bool(caplog.records))
        folder.mkdir()
        await backlog.flush(20)
    assert [each.read_text() for each in folder.iterdir()] == ["one\n"]


async def test_a_full_disk_is_told_of_once_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    async with running(disk) as backlog:
        backlog.put("one", 1, 1)
        await until(lambda: disk.tries >= 3)
        disk.full = False
        backlog.put("two", 2, 1)
        await backlog.flush(20)
    assert disk.lines == ["one", "two"]
    assert [each.levelname for each in caplog.records if "copied" in each.message] == ["ERROR"]


async def test_lines_beyond_the_bound_are_named_by_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    async with running(disk) as backlog:
        for number in range(outlet.MOST + 5):
            backlog.put("x", number + 1, 1)
        disk.full = False
        await backlog.flush(20)
        backlog.put("y", outlet.MOST + 6, 1)
        await backlog.flush(20)
    missed = f'{{"entries":5,"from":{outlet.MOST + 1},"to":{outlet.MOST + 5}}}'
    assert disk.lines[outlet.MOST :] == [f'{{"audit":true,"missed":{missed}}}', "y"]


async def test_a_folder_knows_its_last_entry_and_what_waits(tmp_path: Path) -> None:
    async with running(Folder(tmp_path)) as backlog:
        assert await backlog.copied() == 0
        for number, epoch in ((8, 9), (9, 9), (7, 10)):
            entry = seal(Head(number - 1), epoch, Record(Millis(1), Deed.HELD))
            backlog.put(line(entry), number, epoch)
        await backlog.flush(20)
        for path in tmp_path.iterdir():
            with path.open("a") as file:
                file.write('{"audit":true,"number":99')
        (tmp_path / "audit-0000000011-0000000000000100.ndjson").write_text('{"audit":tr')
        assert await Backlog("another process", Folder(tmp_path)).copied() == 7
        backlog.put("more", 12, 10)
        assert await backlog.copied() == 12


async def test_a_sink_that_cannot_be_asked_or_read_says_so() -> None:
    assert await Backlog("standard output", outlet.output()).copied() is None
    assert await Backlog("a disk that is ill", Disk()).copied() == 0


def test_what_is_left_of_a_line_is_written_before_the_next() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    file, waiting = Descriptor(writing), deque([Line("a" * 70_000, 1, 1), Line("b", 2, 1)])
    with pytest.raises(BlockingIOError):
        file.write(waiting)
    assert len(waiting) == 2
    read = os.read(reading, 100_000)
    file.write(waiting)
    assert (read + os.read(reading, 100_000)).decode() == "a" * 70_000 + "\nb\n"
    os.close(reading)
    os.close(writing)
