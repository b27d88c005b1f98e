"""Redis in every supported form: with TLS, with a restricted user, behind sentinels."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlencode

import pytest

from app.core.audit.codec import SignedHead
from app.core.audit_entry import AuditRecord, EntryType, Head, seal
from app.core.effects import Refund, StoreWrite
from app.core.errors import StoreError, StoreUnavailable
from app.core.explain.views import LeaderStateMessage
from app.core.fairshare.usage_record import UsageEnded
from app.core.model import Millis, Uid
from app.ports.audit import Batch, Report
from app.store.audit_reports import RedisReports
from app.store.audit_stream import RedisTrail
from app.store.connection import Server
from app.store.leader_state_store import RedisLeaderState
from app.store.usage_records import PAGE, RedisRuns
from app.tls.certificate_authority import CertificateAuthority, new_authority
from tests.support.recount import compare
from tests.support.redis import RIGHTS, RedisProcess
from tests.support.shared_stores import AnyStore, Reals, real
from tests.support.store_writes import ALICE, TEAM, charge, enqueue, intend
from tests.support.usage_record_cases import run

CONTENTS: list[StoreWrite] = [charge("a", 4), intend("i", 1), enqueue("q", "1")]


class Relay:
    """A loopback port that forwards to another port, with TLS if a context is given.

    The Redis server of the tests has no TLS. `target` applies to new connections, like a DNS name
    of the current primary. `rewrite` changes the replies.
    """

    def __init__(self, target: int, context: ssl.SSLContext | None = None) -> None:
        self.target = target
        self.rewrite = (b"", b"")
        self.port = 0
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        for way in (
            _carry(reader, far_writer, (b"", b"")),
            _carry(far_reader, writer, self.rewrite),
        ):
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rewrite: tuple[bytes, bytes]
) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data.replace(*rewrite) if rewrite[0] else data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


class Papers:
    """Certificates of one CA, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority: CertificateAuthority = new_authority("redis", datetime.now(UTC), 2)
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self._authority.certificate_pem)

    def issue(self, name: str, names: Sequence[str] = ()) -> tuple[str, str]:
        issued = self._authority.issue(
            name, names=names, server=bool(names), client=not names, now=datetime.now(UTC), days=2
        )
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(issued.certificate_pem)
        files[1].write_bytes(issued.key_pem)
        return str(files[0]), str(files[1])

    def serving(self, names: Sequence[str] = ("127.0.0.1",)) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue("server", names))
        return context


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/")[0])


async def test_store_works_over_tls_with_a_private_ca(store_url: str, papers: Papers) -> None:
    async with Relay(port_of(store_url), papers.serving()).running() as tls:
        url = f"rediss://127.0.0.1:{tls.port}/0?{urlencode({'ssl_ca_certs': papers.ca})}"
        async with real(url) as world:
            await world.store().rebuild(7, CONTENTS)
            assert await compare(world.store(), CONTENTS) == []


async def test_a_certificate_of_an_unknown_ca_is_refused(store_url: str, papers: Papers) -> None:
    async with (
        Relay(port_of(store_url), papers.serving()).running() as tls,
        real(f"rediss://127.0.0.1:{tls.port}/0") as world,
    ):
        with pytest.raises(StoreUnavailable, match=r"not trusted.*name its CA"):
            await world.store().read_epoch_floor()


async def test_a_certificate_of_another_server_is_refused(store_url: str, papers: Papers) -> None:
    serving = papers.serving(["redis.example"])
    async with Relay(port_of(store_url), serving).running() as tls:
        url = f"rediss://127.0.0.1:{tls.port}/0?{urlencode({'ssl_ca_certs': papers.ca})}"
        async with real(url) as world:
            with pytest.raises(StoreUnavailable, match=r"not trusted.*127\.0\.0\.1"):
                await world.store().read_epoch_floor()


async def test_a_server_may_demand_a_certificate_of_us(store_url: str, papers: Papers) -> None:
    serving = papers.serving()
    serving.verify_mode = ssl.CERT_REQUIRED
    serving.load_verify_locations(papers.ca)
    certificate, key = papers.issue("fairgate")
    files = {"ssl_ca_certs": papers.ca, "ssl_certfile": certificate, "ssl_keyfile": key}
    async with Relay(port_of(store_url), serving).running() as tls:
        url = f"rediss://127.0.0.1:{tls.port}/0"
        async with real(f"{url}?{urlencode(files)}") as world:
            assert await world.store().read_epoch_floor() == 0
        async with real(f"{url}?{urlencode({'ssl_ca_certs': papers.ca})}") as stranger:
            with pytest.raises(StoreUnavailable):
                await stranger.store().read_epoch_floor()


@pytest.fixture
def limited(own_redis: RedisProcess) -> Iterator[str]:
    """Return the URL of a user with exactly the rights that the manual lists."""
    own_redis.run_command("ACL", "SETUSER", "fairgate", *RIGHTS.split(), ">s3cret")
    return own_redis.url.replace("//", "//fairgate:s3cret@")


NEEDED = [right for right in RIGHTS.split() if right[0] == "+" and right != "+memory|usage"]
"""The required rights. `+memory|usage` is optional: it only limits the size of the audit chain."""


async def everything(world: Reals) -> None:
    """Use every Redis command that Fairgate uses."""
    store = world.store()
    await world.server.check()
    for _ in range(2):  # the second call removes the objects of the first
        await store.rebuild(7, CONTENTS)
    await store.write(7, [charge("b", 1), enqueue("q", "2"), Refund(Uid("a")), Refund(Uid("b"))])
    await store.claim_epoch(8)
    await store.rebuild(8, [intend("i", 1), enqueue("q", "2")])
    await store.read_open_intents()
    await store.read_pending_counts(TEAM)
    await store.read_page(TEAM, (ALICE,), None, 5)
    assert await compare(store, [intend("i", 1), enqueue("q", "2")]) == []
    ended = [UsageEnded(run(f"{number}", end=2000 + number)) for number in range(PAGE)]
    await store.write(8, ended)
    runs = RedisRuns(world.server, world.cluster)
    assert len([each async for each in runs.read_ended_usage(Millis(0))]) == PAGE
    await store.restore_audit_markers(8, lambda: [("uid", "note")])
    assert await store.audit_markers() == {"uid": "note"}
    await written_down(RedisTrail(world.server, world.cluster))
    await reported(RedisReports(world.server, world.cluster))
    store = RedisLeaderState(world.server, world.cluster)
    await store.store_message(LeaderStateMessage(Millis(1), 8, 0.0))
    assert await store.read_message() is not None


async def written_down(trail: RedisTrail) -> None:
    """Append to the audit chain, remove its oldest entries, and start a new chain."""
    head = Head()
    for keep, aside in ((0, False), (2, False), (0, True)):
        entry = seal(head, 8, AuditRecord(Millis(1), EntryType.LEADING))
        after, head = head, Head(entry.number, entry.hash)
        signed = SignedHead("c", head, 8, Millis(2))
        assert await trail.append(Batch(8, after, (entry,), signed, keep, aside))
    assert [entry.number for entry in await trail.read_entries(0, 10)] == [3]
    assert (await trail.read_tail()).last_head == head
    await trail.remove_markers(8, ["uid", "report/id"])


async def reported(reports: RedisReports) -> None:
    """Store a report for the audit chain, from another process."""
    assert (
        await reports.add_reports([Report("id", AuditRecord(Millis(1), EntryType.REFUSED))]) == {}
    )
    assert [each.id for each in await reports.read_waiting_reports(5)] == ["id"]


def test_the_rights_name_each_command_of_the_scripts_and_no_other() -> None:
    scripts = (files("app.store") / "lua").iterdir()
    called = set(re.findall(r"call\('(\w+)'", "".join(each.read_text() for each in scripts)))
    named = {right[1:].partition("|")[0].upper() for right in RIGHTS.split() if right[0] == "+"}
    assert named == called | {"INFO", "EVAL", "EVALSHA"}


async def test_the_rights_that_the_manual_lists_suffice(limited: str) -> None:
    async with real(limited) as world:
        await everything(world)


@pytest.mark.parametrize("right", NEEDED)
async def test_missing_right_of_the_redis_user_is_reported(
    own_redis: RedisProcess, limited: str, right: str
) -> None:
    own_redis.run_command("ACL", "SETUSER", "fairgate", "-" + right[1:])
    async with real(limited) as world:
        with pytest.raises(StoreUnavailable, match=r"denies its user.*rights") as told:
            await everything(world)
    assert "s3cret" not in str(told.value)


async def test_keys_of_others_are_out_of_reach(limited: str) -> None:
    server = Server.connect(limited)
    for command in (("GET", "other"), ("FLUSHALL",), ("CONFIG", "GET", "*"), ("KEYS", "*")):
        with pytest.raises(StoreUnavailable, match="denies its user"):
            await server.call(*command)
    await server.close()


async def test_rebuild_without_the_right_to_a_script_command_stays_invalid(
    own_redis: RedisProcess, limited: str
) -> None:
    async with real(limited) as world:
        await world.store().rebuild(7, CONTENTS)
        own_redis.run_command("ACL", "SETUSER", "fairgate", "-zadd")
        with pytest.raises(StoreUnavailable, match="denies"):
            await world.store().rebuild(7, [enqueue("z", "1")])
        assert await compare(world.store(), CONTENTS) == []


class Watched:
    """A primary, a replica and a sentinel that fails over at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.primary = RedisProcess(self._own("primary"))
        self.replica = RedisProcess(
            self._own("replica"), "--replicaof", "127.0.0.1", str(self.primary.port)
        )
        file = self._own("sentinel") / "sentinel.conf"
        file.write_text(
            f"sentinel monitor main 127.0.0.1 {self.primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\n"
            "sentinel failover-timeout main 3000\n"
        )
        self.sentinel = RedisProcess(file.parent, str(file), "--sentinel")
        self.url = f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main/0"

    async def replicating(self) -> None:
        """Wait until the sentinel can fail over."""
        asked = Server.connect(f"redis://127.0.0.1:{self.sentinel.port}/0")
        try:
            while not any(
                b"ok" in dict(zip(each[::2], each[1::2], strict=True))[b"master-link-status"]
                for each in await self._replicas(asked)
            ):
                await asyncio.sleep(0.1)
        finally:
            await asked.close()

    async def _replicas(self, asked: Server) -> list[list[bytes]]:
        answer = await asked.call("SENTINEL", "REPLICAS", "main")
        return [
            list(sum(each.items(), ())) if isinstance(each, dict) else list(each) for each in answer
        ]

    def _own(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def kill(self) -> None:
        for process in (self.sentinel, self.replica, self.primary):
            process.kill()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.kill()


async def lead(store: AnyStore, writes: list[StoreWrite]) -> None:
    """Rebuild from the leader's state until that succeeds, as the leader does after a loss."""
    while True:
        try:
            await store.rebuild(7, writes)
            await store.write(7, [])
        except StoreError:
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_failover_loses_no_writes(watched: Watched, fault: str) -> None:
    async with asyncio.timeout(90), real(watched.url) as world:
        await watched.replicating()
        store = world.store()
        await store.rebuild(7, [])
        truth: list[StoreWrite] = []
        for number in range(200):
            if number == 100:
                getattr(watched.primary, fault)()
            write = charge(str(number), 1)
            truth.append(write)
            try:
                await store.write(7, [write])
            except StoreError:
                await lead(store, truth)
        assert await compare(world.store(), truth) == []
        async with real(watched.replica.url) as promoted:
            promoted.cluster = world.cluster
            assert (await promoted.server.call("ROLE"))[0] == b"master"
            assert await compare(promoted.store(), truth) == []


async def test_former_primary_gets_no_writes_after_a_failover(
    watched: Watched,
) -> None:
    async with asyncio.timeout(90), real(watched.url) as world:
        await watched.replicating()
        await world.store().rebuild(7, [charge("a", 1)])
        watched.primary.freeze()
        await lead(world.store(), [charge("a", 1), charge("b", 1)])
        watched.primary.thaw()
        async with real(watched.primary.url) as demoted:
            while (await demoted.server.call("ROLE"))[0] != b"slave":
                await asyncio.sleep(0.1)
        await lead(world.store(), [charge("c", 1)])
        assert await compare(world.store(), [charge("c", 1)]) == []


async def test_a_name_that_leads_to_another_server_by_now_is_followed(
    own_redis: RedisProcess, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = RedisProcess(tmp_path_factory.mktemp("other"))
    relay = Relay(own_redis.port)
    try:
        async with relay.running(), real(f"redis://127.0.0.1:{relay.port}/0") as world:
            store = world.store()
            await store.rebuild(7, CONTENTS)
            own_redis.run_command("REPLICAOF", "127.0.0.1", str(other.port))
            relay.target = other.port
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.write(7, [])
            await store.rebuild(7, CONTENTS)
            assert await compare(store, CONTENTS) == []
    finally:
        other.kill()


async def test_sentinels_and_their_servers_may_both_speak_tls(
    own_redis: RedisProcess, tmp_path_factory: pytest.TempPathFactory, papers: Papers
) -> None:
    folder = tmp_path_factory.mktemp("sentinel")
    file = folder / "sentinel.conf"
    file.write_text(f"sentinel monitor main 127.0.0.1 {own_redis.port} 1\n")
    sentinel = RedisProcess(folder, str(file), "--sentinel")
    try:
        async with (
            Relay(own_redis.port, papers.serving()).running() as tls,
            Relay(sentinel.port, papers.serving()).running() as asked,
        ):
            # The sentinel knows only the plain port. Both ports have five digits.
            asked.rewrite = (str(own_redis.port).encode(), str(tls.port).encode())
            files = urlencode({"ssl_ca_certs": papers.ca})
            async with real(f"rediss+sentinel://127.0.0.1:{asked.port}/main/0?{files}") as world:
                await world.store().rebuild(7, CONTENTS)
                assert await compare(world.store(), CONTENTS) == []
            async with real(f"rediss+sentinel://127.0.0.1:{asked.port}/main/0") as stranger:
                with pytest.raises(StoreUnavailable, match=r"not trusted.*name its CA"):
                    await stranger.store().read_epoch_floor()
    finally:
        sentinel.kill()


async def test_a_sentinel_that_demands_a_password_is_named_as_the_cause(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("sentinel")
    file = folder / "sentinel.conf"
    file.write_text("sentinel monitor main 127.0.0.1 1 1\n")
    sentinel = RedisProcess(folder, str(file), "--sentinel")
    sentinel.run_command("ACL", "SETUSER", "default", ">other")
    try:
        async with real(f"redis+sentinel://me:s3cret@127.0.0.1:{sentinel.port}/main/0") as world:
            with pytest.raises(StoreUnavailable, match="already authenticated") as found:
                await world.store().read_epoch_floor()
        assert "s3cret" not in str(found.value)
        assert "Redis(" not in str(found.value)
    finally:
        sentinel.kill()
