"""`fairgate audit export`: a failure keeps the earlier copy, and `--tenant` finds the Tenant."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.commands.audit import command
from app.core.audit.verifier import BrokenChain
from app.core.audit_entry import AuditRecord, EntryType
from app.core.errors import StoreUnavailable
from app.core.kubeconfig import KubeconfigOptions
from app.core.model import Millis
from tests.fakes.fake_audit_stream import FakeTrail
from tests.support.audit_world import World

SOURCE = command.AuditSource("redis://localhost", "default", "", KubeconfigOptions())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A chain of a key entry and three others, which the command reads."""
    world = World()
    asyncio.run(world.term(1, 3))

    @asynccontextmanager
    async def reader(_: command.AuditSource) -> AsyncIterator[FakeTrail]:
        yield FakeTrail(world.stream)

    monkeypatch.setattr(command, "_reader", reader)
    return world


def export(file: Path, tenant: str | None = None) -> None:
    command.export(SOURCE, None, None, tenant, file)


def whole(world: World) -> list[str]:
    """Return the lines of a whole export, without the head."""
    return [text for _, text in world.stream.rows]


@pytest.mark.parametrize("fault", ["Redis is down", "an entry is invalid"])
def test_failed_export_keeps_the_earlier_copy(world: World, tmp_path: Path, fault: str) -> None:
    copy = tmp_path / "audit.ndjson"
    copy.write_text("the earlier copy")
    if fault == "Redis is down":
        world.stream.down = True
    else:
        world.stream.forge(world.stream.rows[-1][0] + 1, "invalid")
    with pytest.raises((StoreUnavailable, BrokenChain)):
        export(copy)
    assert copy.read_text() == "the earlier copy"
    assert list(tmp_path.iterdir()) == [copy]


def test_export_replaces_the_file_behind_a_link_and_keeps_its_permissions(
    world: World, tmp_path: Path
) -> None:
    copy, link = tmp_path / "audit.ndjson", tmp_path / "newest"
    copy.write_text("the earlier copy")
    copy.chmod(0o640)
    link.symlink_to(copy)
    export(link)
    assert link.is_symlink()
    assert copy.stat().st_mode & 0o777 == 0o640
    assert copy.read_text().splitlines()[:-1] == whole(world)
    assert sorted(tmp_path.iterdir()) == [copy, link]


def test_new_file_has_the_usual_permissions(world: World, tmp_path: Path) -> None:
    usual, copy = tmp_path / "usual", tmp_path / "audit.ndjson"
    usual.touch()
    export(copy)
    assert copy.stat().st_mode == usual.stat().st_mode
    assert copy.read_text().splitlines()[:-1] == whole(world)


def test_export_is_written_into_a_pipe(world: World, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        export(pipe)
        assert os.read(reader, 1 << 16).decode().splitlines()[:-1] == whole(world)
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_entries_about_the_tenant_itself_are_exported(world: World, tmp_path: Path) -> None:
    facts = [
        (EntryType.CHANGED, {"kind": "Tenant", "name": "a", "did": "changed"}),
        (EntryType.DELETED, {"kind": "Tenant", "name": "a", "by": "carol"}),
        (EntryType.HELD, {"pod": "p", "tenant": "a"}),
        (EntryType.CHANGED, {"kind": "Pool", "name": "a", "did": "changed"}),
        (EntryType.CHANGED, {"kind": "Tenant", "name": "b", "did": "changed"}),
        (EntryType.HELD, {"pod": "a", "tenant": "b"}),
    ]

    async def write() -> None:
        chain = await world.term(2, 0)
        await chain.seal([AuditRecord(Millis(10), kind, about) for kind, about in facts])

    asyncio.run(write())
    file = tmp_path / "a.ndjson"
    export(file, tenant="a")
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(each["deed"], each["facts"]) for each in found] == [
        (kind.value, about) for kind, about in facts[:3]
    ]
