"""The serving certificate at run time: changing files, an edited Secret, and failures."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.config.setting_parsers import HostPort
from app.core.errors import ClusterError, ClusterUnavailable, InvalidSettings
from app.ports.liveness import Liveness
from app.tls.ca_bundle import is_subset
from app.tls.certificate_authority import write_private
from app.tls.certificate_source import SECRET, FileCertificate, SecretCertificate
from app.tls.certificate_watcher import CertificateSource, Renewal, wait_for_certificate
from app.tls.rotation import KEYS, new_content
from app.web.health import ops_app
from app.web.server.server import Listener, Servers, ServerTls
from tests.fakes.fake_secrets import FakeSecrets

NAMESPACE = "ns"
NAMES = ("127.0.0.1", "localhost")
NOW = datetime.now(UTC)
SETTLE = 60.0
ANY = HostPort("127.0.0.1", 0)

Content = dict[str, bytes]


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Published(list[bytes]):
    """Every bundle that was published, in order."""

    async def __call__(self, ca: bytes) -> None:
        self.append(ca)


def write(folder: Path, content: Content) -> None:
    for key in KEYS:
        write_private(folder / key, content[key])


def brought(folder: Path) -> FileCertificate:
    return FileCertificate(*(folder / key for key in KEYS))


def kept(secrets: FakeSecrets, clock: Clock, *, writes: bool = True) -> SecretCertificate:
    settle = timedelta(seconds=SETTLE)
    return SecretCertificate(
        secrets, NAMESPACE, names=NAMES, days=9, settle=settle, now=clock.now, writes=writes
    )


async def renewal(source: CertificateSource, clock: Clock) -> tuple[Renewal, Published]:
    begun, published = await wait_for_certificate(source), Published()
    settle = timedelta(seconds=SETTLE)
    made = Renewal(source, begun, settle=settle, now=clock.now, clock=clock)
    made.publish_ca = published
    return made, published


async def look(each: Renewal, clock: Clock, times: int = 3) -> None:
    for _ in range(times):
        await each.check_source()
    clock.seconds += SETTLE


async def settle(each: Renewal, clock: Clock) -> None:
    """Look until a change is served."""
    for _ in range(3):
        await look(each, clock)


async def test_changed_certificate_is_served_after_its_ca_is_published(
    tmp_path: Path, clock: Clock
) -> None:
    old, new = new_content(NAMES, NOW, 9), new_content(NAMES, NOW, 9)
    write(tmp_path, old)
    each, published = await renewal(brought(tmp_path), clock)
    tls = ServerTls(each.serving.certificate, each.serving.key)
    each.subscribe(lambda found: tls.renew_certificate(found.certificate, found.key))
    servers, stop = (
        Servers([Listener("webhook", ops_app({}, Liveness(), None), ANY, tls.current_context)]),
        asyncio.Event(),
    )
    task = asyncio.create_task(servers.run(stop, 0))
    await servers.started.wait()
    address = ("127.0.0.1", servers.ports["webhook"])

    async def shown() -> bytes:
        return (await asyncio.to_thread(ssl.get_server_certificate, address)).encode()

    await look(each, clock)
    write(tmp_path, new)
    await look(each, clock)
    assert await shown() == old["tls.crt"]
    assert is_subset(new["ca.crt"], published[-1])
    await look(each, clock)
    assert await shown() == new["tls.crt"]
    assert is_subset(old["ca.crt"], published[-1])
    await look(each, clock)
    assert published[-1] == new["ca.crt"]
    stop.set()
    await task


async def test_files_that_are_being_written_are_not_mixed(tmp_path: Path) -> None:
    old, new = new_content(NAMES, NOW, 9), new_content(NAMES, NOW, 9)
    write(tmp_path, old)
    source = brought(tmp_path)
    await source.read_bundle()
    seen = set()
    for key in KEYS:
        write_private(tmp_path / key, new[key])
        seen.add((await source.read_bundle()).certificate)
    assert seen == {old["tls.crt"]}
    assert (await source.read_bundle()).certificate == new["tls.crt"]


async def test_key_that_does_not_match_the_certificate_changes_nothing(
    tmp_path: Path, clock: Clock
) -> None:
    old, new = new_content(NAMES, NOW, 9), new_content(NAMES, NOW, 9)
    write(tmp_path, old)
    each, _ = await renewal(brought(tmp_path), clock)
    tls = ServerTls(each.serving.certificate, each.serving.key)
    each.subscribe(lambda found: tls.renew_certificate(found.certificate, found.key))
    await look(each, clock)
    for wrong in ({"tls.key": new["tls.key"]}, {"tls.crt": new["tls.crt"]}):
        write(tmp_path, {**old, **wrong, "ca.crt": old["ca.crt"] + new["ca.crt"]})
        with pytest.raises(InvalidSettings, match="belongs to it"):
            await settle(each, clock)
        assert each.serving.key == old["tls.key"]


async def test_files_that_vanish_are_named(tmp_path: Path) -> None:
    write(tmp_path, new_content(NAMES, NOW, 9))
    source = brought(tmp_path)
    await source.read_bundle()
    (tmp_path / "tls.key").unlink()
    with pytest.raises(InvalidSettings, match=r"tls\.key cannot be read"):
        await source.read_bundle()


async def test_secret_of_another_author_is_followed_and_never_renewed(clock: Clock) -> None:
    secrets, content = FakeSecrets(), new_content(NAMES, NOW - timedelta(days=8), 9)
    secrets.put(NAMESPACE, SECRET, content, ours=False)
    each, published = await renewal(kept(secrets, clock), clock)
    await look(each, clock)
    assert secrets.stored[NAMESPACE, SECRET].data == content
    new = new_content(NAMES, NOW, 9)
    secrets.put(NAMESPACE, SECRET, new, ours=False)
    for _ in range(4):
        await look(each, clock)
    assert each.serving.certificate == new["tls.crt"]
    assert published[-1] == new["ca.crt"]


async def test_only_a_webhook_creates_the_secret(clock: Clock) -> None:
    secrets = FakeSecrets()
    assert await kept(secrets, clock, writes=False).read_bundle() is None
    assert not secrets.stored
    made = await kept(secrets, clock).read_bundle()
    assert await kept(secrets, clock, writes=False).read_bundle() == made


async def test_incomplete_secret_is_reported_and_the_old_certificate_still_served(
    clock: Clock,
) -> None:
    secrets = FakeSecrets()
    each, _ = await renewal(kept(secrets, clock), clock)
    served = each.serving
    secrets.put(NAMESPACE, SECRET, {"tls.crt": b"x", "tls.key": b"y"}, ours=True)
    with pytest.raises(ClusterError, match=r"lacks ca\.crt"):
        await each.check_source()
    assert each.serving == served


async def test_certificate_is_not_served_until_its_ca_was_published(clock: Clock) -> None:
    secrets = FakeSecrets()
    each, published = await renewal(kept(secrets, clock), clock)
    await look(each, clock)
    served = each.serving

    async def fail(ca: bytes) -> None:
        raise ClusterUnavailable("no answer")

    each.publish_ca = fail
    del secrets.stored[NAMESPACE, SECRET]
    for _ in range(3):
        with pytest.raises(ClusterUnavailable):
            await look(each, clock, times=1)
    assert each.serving == served
    each.publish_ca = published
    await look(each, clock)
    assert each.serving == served
    await look(each, clock)
    assert each.serving != served


async def test_failed_renewal_is_retried_and_logged_once(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    secrets, published = FakeSecrets(), Published()
    source = kept(secrets, clock)
    soon = timedelta(milliseconds=20)
    each = Renewal(
        source, await wait_for_certificate(source), settle=soon, now=clock.now, clock=clock
    )
    each.publish_ca = published
    secrets.silent = True
    running = asyncio.create_task(each.watch_certificate())
    tries = secrets.tries
    await once(lambda: secrets.tries > tries + 3)
    secrets.silent = False
    await once(lambda: bool(published))
    running.cancel()
    told = [record for record in caplog.records if "cannot be renewed" in record.message]
    assert len(told) == 1


async def test_the_time_that_is_left_is_that_of_the_certificate_in_use(clock: Clock) -> None:
    each, _ = await renewal(kept(FakeSecrets(), clock), clock)
    assert each.seconds_left() == pytest.approx(timedelta(days=9).total_seconds(), abs=2)
    clock.seconds = 3600
    assert each.seconds_left() == pytest.approx(timedelta(days=9, hours=-1).total_seconds(), abs=2)


async def once(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)
