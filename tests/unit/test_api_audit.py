"""GET /v1/audit: what a client gets can be verified, and what it may not see is not in it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from app.core.audit import GENESIS, Deed, Entry, Head, Record, seal
from app.core.audit_lines import SignedHead, line, read
from app.core.engine import Engine
from app.core.model import Millis
from app.core.resources import ManagedResources
from app.web.access import Access
from app.web.api import entries
from app.web.api.app import api_app
from app.web.api.audit import LONGEST_CHUNK
from app.web.api.ground import Ground
from app.web.view import View
from app.wiring import audit as command
from tests.fakes.asgi import Reply, call
from tests.fakes.runs import FakeRuns
from tests.fakes.trail import FakeKey, FakeTrail, Stream
from tests.unit.test_api import Queues, Rights

NOW = Millis(1_800_000_000_000)
ALL = ("get", "audit")


@pytest.fixture
def rights() -> Rights:
    return Rights({ALL})


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def app(rights: Rights, stream: Stream) -> ASGIApp:
    engine = Engine(ManagedResources(("nvidia.com/gpu",)), records=False)
    access, chain = Access(rights), FakeTrail(stream)
    ground = Ground(
        access, engine, lambda: True, lambda: 0, lambda: NOW, View(()), Queues(), FakeRuns(), chain
    )
    return api_app(ground, {})


async def write(stream: Stream, *records: Record) -> None:
    """Append entries as a leader does, and sign the head."""
    head = stream.last()
    for record in records:
        entry = seal(head, 1, record)
        stream.rows.append((entry.number, line(entry)))
        head = entry.head
    signing = await FakeKey().load()
    stream.signed = signing.sign(SignedHead("default", head, 1, NOW))


def held(tenant: str, at: int, **more: str) -> Record:
    facts = {"uid": f"u{at}", "namespace": tenant, "pod": f"{tenant}-{at}", "tenant": tenant}
    return Record(Millis(at), Deed.HELD, facts | more)


async def get(app: ASGIApp, path: str) -> Reply:
    return await call(app, "GET", f"/v1/audit{path}", b"", {"authorization": "Bearer alices"})


def told(reply: Reply) -> list[Entry]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    found = [read(text) for text in reply.body.decode().splitlines()]
    return [each for each in found if isinstance(each, Entry)]


async def test_what_a_client_gets_can_be_verified(
    app: ASGIApp, stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await write(stream, *(held("a", at) for at in range(1300)))
    body, head = (await get(app, "")).body, (await get(app, "/head")).json
    (tmp_path / "audit.ndjson").write_bytes(body)
    (tmp_path / "head.json").write_text(head["signed"])
    here = command.Source(None, "default", "", None)
    files = (tmp_path / "audit.ndjson",)
    command.verify(here, files, tmp_path / "head.json", None, as_json=True)
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["holds"], verdict["entries"], head["number"]) == (True, 1300, 1300)

    (tmp_path / "audit.ndjson").write_bytes(body.replace(b'"a-7"', b'"a-8"', 1))
    with pytest.raises(SystemExit):
        command.verify(here, files, None, None, as_json=True)


async def test_an_export_comes_in_pieces_of_bounded_size(app: ASGIApp, stream: Stream) -> None:
    await write(stream, *(held("a", at, why="x" * 1000) for at in range(500)))
    sizes: list[int] = []

    async def send(message: dict[str, object]) -> None:
        sizes.append(len(message.get("body", b"")))  # type: ignore[arg-type]

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    headers = [(b"authorization", b"Bearer alices")]
    scope = {"type": "http", "method": "GET", "path": "/v1/audit", "query_string": b"",
             "headers": headers, "asgi": {"version": "3.0"}, "state": {}}  # fmt: skip
    await app(scope, receive, send)  # type: ignore[arg-type]
    assert max(sizes) < LONGEST_CHUNK + 2000
    assert sum(sizes) > 6 * LONGEST_CHUNK


async def test_times_bound_an_export(
    app: ASGIApp, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PAGE", 10)
    day = 86_400_000
    await write(stream, *(held("a", at * day) for at in range(100)))
    reply = await get(app, "?since=1970-02-01T00:00:00Z&until=1970-02-03T00:00:00Z")
    assert [each.record.at // day for each in told(reply)] == [31, 32]
    assert b'"head"' not in reply.body
    assert len(told(await get(app, "?since=1970-02-01T00:00:00Z"))) == 69


async def test_what_was_reported_late_is_found_by_its_time(
    app: ASGIApp, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PAGE", 10)
    hour = 3_600_000
    late = Record(Millis(50 * hour + 1), Deed.REFUSED, {"tenant": "late"})
    early = [held("a", at * hour) for at in range(90)]
    await write(stream, *early, late, *(held("a", at * hour) for at in range(90, 100)))
    reply = await get(app, "?since=1970-01-03T02:00:00Z&until=1970-01-03T02:00:01Z")
    assert [each.record.facts["tenant"] for each in told(reply)] == ["a", "late"]


async def test_who_may_read_of_one_tenant_reads_of_that_one(
    app: ASGIApp, stream: Stream, rights: Rights
) -> None:
    rights.granted = {("get", "audit/a")}
    for_another = Record(
        Millis(3), Deed.RECLAIMED, {"tenant": "a", "for": "canary/secret", "forTenant": "b"}
    )
    own = Record(Millis(4), Deed.RECLAIMED, {"tenant": "a", "for": "a/own", "forTenant": "a"})
    itself = Record(Millis(5), Deed.CHANGED, {"kind": "Tenant", "name": "a", "by": "root"})
    other = Record(Millis(6), Deed.CHANGED, {"kind": "Tenant", "name": "canary"})
    await write(stream, held("a", 1), held("canary", 2), for_another, own, itself, other)

    assert (await get(app, "")).status == 403
    assert (await get(app, "/head")).status == 403
    assert (await get(app, "?tenant=canary")).status == 403
    reply = await get(app, "?tenant=a")
    assert b"canary" not in reply.body
    rows = [json.loads(text) for text in reply.body.decode().splitlines()]
    assert [row["at"] for row in rows] == [1, 3, 4, 5]
    assert ["hash" in row for row in rows] == [True, False, True, True]
    assert rows[2]["facts"]["for"] == "a/own"

    rights.granted = {ALL, ("get", "audit/a")}
    rows = [json.loads(text) for text in (await get(app, "?tenant=a")).body.decode().splitlines()]
    assert rows[1]["facts"]["for"] == "canary/secret"


async def test_an_excerpt_leaves_out_what_is_not_legible(
    app: ASGIApp, stream: Stream, rights: Rights
) -> None:
    rights.granted = {("get", "audit/a")}
    await write(stream, held("a", 1), held("a", 2))
    whole = stream.rows[0][1]
    odd = whole[:-20], "nonsense", whole.replace('"facts":{', '"facts":[{').replace("},", "}],", 1)
    stream.rows[1:1] = [(1, text) for text in odd]
    assert len(told(await get(app, "?tenant=a"))) == 2


async def test_a_chain_without_a_head_is_exported_without_one(app: ASGIApp) -> None:
    assert (await get(app, "/head")).status == 404
    assert (await get(app, "")).body == b""


async def test_without_redis_there_is_no_answer(app: ASGIApp, stream: Stream) -> None:
    stream.down = True
    assert (await get(app, "")).status == 503
    assert (await get(app, "/head")).status == 503


async def test_a_time_must_be_legible(app: ASGIApp) -> None:
    assert (await get(app, "?since=soon")).status == 422
    assert Head().hash == GENESIS
