"""GET /v1/audit: the answer can be verified, and contains only entries the caller may see."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.types import ASGIApp

from app.commands.audit import command
from app.core.audit.codec import SignedHead, entry_line, parse_line
from app.core.audit.config_changes import ConfigChanges, marker_key, spec_of
from app.core.audit_entry import GENESIS, AuditRecord, Entry, EntryType, Fact, Head, seal
from app.core.kubeconfig import KubeconfigOptions
from app.core.model import Millis, Quota, Tenant
from app.terminal.output import OutputFormat, OutputOptions
from app.web.api import audit, audit_reader
from app.web.api.audit import LONGEST_CHUNK
from app.web.api.auth import Access
from app.web.api.formatting import to_datetime
from tests.fakes.fake_audit_stream import FakeKey, FakeTrail, Stream
from tests.fakes.fake_authorizer import People, Rights
from tests.support.asgi import Reply, call
from tests.support.rest_app import GPU, NOW, Both, problem, tenant

ALL = ("get", "audit")

JSON = OutputOptions(OutputFormat.JSON)


@pytest.fixture
def both() -> Both:
    both = Both()
    both.rights.granted = {ALL}
    return both


@pytest.fixture
def rights(both: Both) -> Rights:
    return both.rights


@pytest.fixture
def stream(both: Both) -> Stream:
    return both.stream


@pytest.fixture
def app(both: Both) -> ASGIApp:
    return both.app


async def write(stream: Stream, *records: AuditRecord) -> None:
    """Append entries as a leader does, and sign the head."""
    head = stream.last()
    for record in records:
        entry = seal(head, 1, record)
        stream.rows.append((entry.number, entry_line(entry)))
        head = entry.head
    signing = await FakeKey().load()
    stream.signed = signing.sign(SignedHead("default", head, 1, NOW))


def held(tenant: str, at: int, **more: str) -> AuditRecord:
    facts = {"uid": f"u{at}", "namespace": tenant, "pod": f"{tenant}-{at}", "tenant": tenant}
    return AuditRecord(Millis(at), EntryType.HELD, facts | more)


async def get(app: ASGIApp, path: str) -> Reply:
    return await call(app, "GET", f"/v1/audit{path}", b"", {"authorization": "Bearer alices"})


def told(reply: Reply) -> list[Entry]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/x-ndjson"
    found = [parse_line(text) for text in reply.body.decode().splitlines()]
    return [each for each in found if isinstance(each, Entry)]


async def test_exported_chain_can_be_verified_by_the_client(
    app: ASGIApp, stream: Stream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await write(stream, *(held("a", at) for at in range(1300)))
    body, head = (await get(app, "")).body, (await get(app, "/head")).json
    (tmp_path / "audit.ndjson").write_bytes(body)
    (tmp_path / "head.json").write_text(head["signed"])
    here = command.AuditSource(None, "default", "", KubeconfigOptions())
    files = (tmp_path / "audit.ndjson",)
    command.verify(here, files, tmp_path / "head.json", None, output=JSON)
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["holds"], verdict["entries"], head["number"]) == (True, 1300, 1300)

    (tmp_path / "audit.ndjson").write_bytes(body.replace(b'"a-7"', b'"a-8"', 1))
    with pytest.raises(SystemExit):
        command.verify(here, files, None, None, output=JSON)


async def test_export_is_sent_in_chunks_of_bounded_size(app: ASGIApp, stream: Stream) -> None:
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


class SlowTrail(FakeTrail):
    """A chain that returns entries only after `ready` is set, and counts the reads under way."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.ready = asyncio.Event()
        self.reads = 0

    async def read_lines(self, after: int, limit: int) -> tuple[tuple[int, str], ...]:
        self.reads += 1
        try:
            await self.ready.wait()
        finally:
            self.reads -= 1
        return await super().read_lines(after, limit)


@pytest.fixture
async def trail(both: Both, stream: Stream) -> SlowTrail:
    """Return the slow chain that `both.app` exports, to `alice`, `bob`, `carol` and bots."""
    people = People({name: {(*ALL, "")} for name in ("alice", "bob", "carol", *BOTS)})
    trail = SlowTrail(stream)
    both.context = replace(both.context, access=Access(people), audit_reader=trail)
    await write(stream, held("a", 1))
    return trail


BOTS = [f"system:serviceaccount:team-a:bot-{number}" for number in range(3)]


async def export(both: Both, who: str) -> Reply:
    return await call(both.app, "GET", "/v1/audit", b"", {"authorization": f"Bearer {who}"})


@pytest.mark.parametrize("callers", [["alice"] * 3, BOTS], ids=["one", "bots"])
async def test_a_second_export_of_a_caller_waits_and_a_third_is_refused(
    both: Both, trail: SlowTrail, callers: list[str]
) -> None:
    replies = asyncio.as_completed([export(both, each) for each in callers], timeout=5)
    refused = await next(replies)
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert problem(refused) == "Your last exports of the audit chain go on; wait for them."
    assert trail.reads == 1
    trail.ready.set()
    assert [(await next(replies)).status for _ in range(2)] == [200, 200]
    assert (await export(both, callers[0])).status == 200


async def test_more_than_two_exports_at_a_time_are_refused(
    both: Both, trail: SlowTrail, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "TURN_SECONDS", 0.05)
    exports = [asyncio.create_task(export(both, each)) for each in ("alice", "bob")]
    async with asyncio.timeout(5):
        while trail.reads < 2:
            await asyncio.sleep(0)
    refused = await export(both, "carol")
    assert (refused.status, refused.headers["retry-after"]) == (429, "2")
    assert problem(refused) == "Other exports of the audit chain go on; try again soon."
    trail.ready.set()
    assert [(await each).status for each in exports] == [200, 200]
    assert (await export(both, "carol")).status == 200


async def test_an_export_ends_its_turn_if_its_client_is_gone(both: Both, trail: SlowTrail) -> None:
    """The server ends the connection of a client that does not read."""
    trail.ready.set()

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/v1/audit", "query_string": b"",
             "headers": [(b"authorization", b"Bearer alice")], "asgi": {"version": "3.0"},
             "state": {}}  # fmt: skip
    async with asyncio.timeout(5):
        await both.app(scope, receive, wait)  # type: ignore[arg-type]
    assert (await export(both, "alice")).status == 200


async def test_times_bound_an_export(
    app: ASGIApp, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_reader, "PAGE", 10)
    day = 86_400_000
    await write(stream, *(held("a", at * day) for at in range(100)))
    reply = await get(app, "?since=1970-02-01T00:00:00Z&until=1970-02-03T00:00:00Z")
    assert [each.record.at // day for each in told(reply)] == [31, 32]
    assert b'"head"' not in reply.body
    assert len(told(await get(app, "?since=1970-02-01T00:00:00Z"))) == 69


async def test_entry_reported_late_is_found_by_its_own_time(
    app: ASGIApp, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_reader, "PAGE", 10)
    hour = 3_600_000
    late = AuditRecord(Millis(50 * hour + 1), EntryType.REFUSED, {"tenant": "late"})
    early = [held("a", at * hour) for at in range(90)]
    await write(stream, *early, late, *(held("a", at * hour) for at in range(90, 100)))
    reply = await get(app, "?since=1970-01-03T02:00:00Z&until=1970-01-03T02:00:01Z")
    assert [each.record.facts["tenant"] for each in told(reply)] == ["a", "late"]


async def test_right_on_one_tenant_shows_only_its_audit_entries(
    app: ASGIApp, stream: Stream, rights: Rights
) -> None:
    rights.granted = {("get", "audit/a")}
    for_another = AuditRecord(
        Millis(3), EntryType.RECLAIMED, {"tenant": "a", "for": "canary/secret", "forTenant": "b"}
    )
    own = AuditRecord(
        Millis(4), EntryType.RECLAIMED, {"tenant": "a", "for": "a/own", "forTenant": "a"}
    )
    itself = AuditRecord(
        Millis(5), EntryType.CHANGED, {"kind": "Tenant", "name": "a", "by": "root"}
    )
    other = AuditRecord(Millis(6), EntryType.CHANGED, {"kind": "Tenant", "name": "canary"})
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


def level(first: str, following: str) -> dict[str, Fact]:
    return {"first": first, "score": "1", "next": following, "nextScore": "2"}


def without_next(level: dict[str, Fact]) -> dict[str, Fact]:
    return {name: fact for name, fact in level.items() if name != "next"}


TOP, PARENT = level("top", "canary-top"), level("a", "canary-user-of-the-parent")
OWN = level("alice", "bob")


@pytest.mark.parametrize(
    ("compared", "shown"),
    [
        ((OWN,), [OWN]),
        ((PARENT, OWN), [without_next(PARENT), OWN]),
        ((TOP, TOP, PARENT, OWN), [*map(without_next, (TOP, TOP, PARENT)), OWN]),
        # The tree is deeper than an entry.
        ((TOP, TOP, TOP, PARENT), [*map(without_next, (TOP, TOP, TOP, PARENT))]),
        (({"first": "a"}, {"first": "alice"}), [{"first": "a"}, {"first": "alice"}]),
    ],
)
async def test_right_on_one_tenant_shows_no_names_of_siblings_above_it(
    app: ASGIApp,
    stream: Stream,
    rights: Rights,
    compared: tuple[dict[str, Fact], ...],
    shown: list[dict[str, Fact]],
) -> None:
    facts: dict[str, Fact] = {"tenant": "a", "user": "alice", "compared": compared}
    await write(stream, AuditRecord(Millis(1), EntryType.RELEASED, facts))
    rights.granted = {("get", "audit/a")}
    reply = await get(app, "?tenant=a")
    assert b"canary" not in reply.body
    row = json.loads(reply.body)
    assert row["facts"] == {**facts, "compared": shown}
    assert ("hash" in row) == (shown == list(compared))
    rights.granted = {ALL}
    row = json.loads((await get(app, "?tenant=a")).body)
    assert (row["facts"]["compared"], "hash" in row) == (list(compared), True)


async def test_excerpt_omits_invalid_entries(app: ASGIApp, stream: Stream, rights: Rights) -> None:
    rights.granted = {("get", "audit/a")}
    await write(stream, held("a", 1), held("a", 2))
    whole = stream.rows[0][1]
    odd = whole[:-20], "nonsense", whole.replace('"facts":{', '"facts":[{').replace("},", "}],", 1)
    stream.rows[1:1] = [(1, text) for text in odd]
    assert len(told(await get(app, "?tenant=a"))) == 2


async def test_head_of_an_empty_chain_is_404_and_its_export_is_empty(app: ASGIApp) -> None:
    assert (await get(app, "/head")).status == 404
    assert (await get(app, "")).body == b""


async def test_request_without_redis_is_503(app: ASGIApp, stream: Stream) -> None:
    stream.down = True
    assert (await get(app, "")).status == 503
    assert (await get(app, "/head")).status == 503


async def test_invalid_time_is_400(app: ASGIApp) -> None:
    assert (await get(app, "?since=soon")).status == 400
    assert Head().hash == GENESIS


def changed(tenant: Tenant | str, at: int, before: Tenant | None = None) -> AuditRecord:
    """Return the audit record of a change to a tenant; a name means its deletion."""
    changes = ConfigChanges()
    if before is not None:
        list(
            changes.observe_resource(
                Millis(at), marker_key(Tenant, before.name), spec_of(before), "root"
            )
        )
    list(changes.start_term(Millis(at), None if before else {}))
    if isinstance(tenant, str):
        (record,) = changes.record_deleted(Millis(at), marker_key(Tenant, tenant))
    else:
        key = marker_key(Tenant, tenant.name)
        (record,) = changes.observe_resource(Millis(at), key, spec_of(tenant), "root")
    return record


async def test_quotas_at_a_past_time_are_read_from_the_audit_chain(
    both: Both, stream: Stream
) -> None:
    both.rights.granted = {("get", "quotas")}
    first = tenant("a", 2, quotas={"h100": Quota({GPU: 4}, {GPU: 8})})
    second = tenant("a", 5, quotas={"h100": Quota({GPU: 1})})
    gone = tenant("b", 1).tenant
    await both.hear(second)
    await both.open()
    await write(
        stream,
        changed(gone, NOW - 9000),
        changed(first.tenant, NOW - 8000),
        *(held("a", NOW - 7000) for _ in range(700)),
        changed(second.tenant, NOW - 3000, first.tenant),
        changed("b", NOW - 2000, gone),
    )

    async def rows(ago: int) -> list[tuple[str, str, str, dict[str, str], dict[str, str]]]:
        at = to_datetime(Millis(NOW - ago)).isoformat().replace("+00:00", "Z")
        reply = await both.get(f"/v1/quotas?at={at}")
        assert reply.status == 200, reply.body
        names = ("tenant", "pool", "weight", "guarantee", "limit")
        return [tuple(row[name] for name in names) for row in reply.json["items"]]

    gpus = lambda number: {"nvidia.com/gpu": str(number)}  # noqa: E731
    b = ("b", "", "1", {}, {})
    assert await rows(8500) == [b]
    assert await rows(5000) == [("a", "h100", "2", gpus(4), gpus(8)), b]
    assert await rows(2500) == [("a", "h100", "5", gpus(1), {}), b]
    assert await rows(1000) == [("a", "h100", "5", gpus(1), {})]


async def test_quotas_before_the_chain_or_in_a_gap_are_refused(both: Both, stream: Stream) -> None:
    both.rights.granted = {("get", "quotas")}
    await both.open()
    reply = await both.get("/v1/quotas?at=2023-11-14T22:13:00Z")
    assert (reply.status, "is empty" in problem(reply)) == (422, True)
    await write(stream, held("a", NOW - 3000), AuditRecord(Millis(NOW - 1000), EntryType.GAP, {}))
    reply = await both.get("/v1/quotas?at=2023-11-14T22:13:00Z")
    assert (reply.status, "begins at 2023-11-14T22:13:17" in problem(reply)) == (422, True)
    reply = await both.get("/v1/quotas?at=2023-11-14T22:13:18Z")
    assert (reply.status, "names a gap" in problem(reply)) == (422, True)
    assert (await both.get("/v1/quotas?at=2023-11-14T22:13:19.5Z")).status == 200


async def test_a_filtered_export_contains_every_type_of_entry(app: ASGIApp, stream: Stream) -> None:
    await write(
        stream, *(AuditRecord(NOW, entry_type, {"tenant": "a"}) for entry_type in EntryType)
    )
    found = told(await get(app, "?since=2023-11-14T00:00:00Z"))
    assert {each.record.entry_type for each in found} == set(EntryType)
