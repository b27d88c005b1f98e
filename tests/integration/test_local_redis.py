"""The Redis of a local cluster and of the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from app.devcluster.processes import Processes
from app.devcluster.redis_server import start_redis

Started = tuple[str, Processes]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    processes = Processes(tmp_path)
    try:
        yield start_redis(tmp_path, processes, durable=False), processes
    finally:
        processes.stop_all()


def test_redis_refuses_commands_without_the_password(started: Started) -> None:
    url, _ = started
    where = urlsplit(url)
    with (
        redis.Redis(host=where.hostname or "", port=where.port or 0) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    with redis.Redis.from_url(url) as owner:
        assert owner.ping()


def test_other_users_of_the_machine_do_not_see_its_password(
    started: Started, tmp_path: Path
) -> None:
    url, processes = started
    password = urlsplit(url).password
    assert password is not None
    assert len(password) >= 32
    [server] = processes.alive()
    assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
    holding = [each for each in tmp_path.rglob("*") if each.is_file() and holds(each, password)]
    assert holding
    assert all(each.stat().st_mode & 0o077 == 0 for each in holding)


def holds(path: Path, password: str) -> bool:
    return password.encode() in path.read_bytes()


def test_each_redis_has_its_own_password(started: Started, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    processes = Processes(other)
    try:
        assert (
            urlsplit(start_redis(other, processes, durable=False)).password
            != urlsplit(started[0]).password
        )
    finally:
        processes.stop_all()
