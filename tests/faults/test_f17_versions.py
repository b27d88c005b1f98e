"""F17: an upgrade to a version with another Redis layout, and back; never two writers."""

from __future__ import annotations

import json
import re
import signal

from redis import Redis

from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.waiting_pods import Crowd

ROOM = 2
NEW = "2"
KEYS = "fairgate:{default}:*"
AUDIT = b"fairgate:{default}:audit"
ENFORCEMENT = b"fairgate:{default}:enforcement"
LAYOUT = "fairgate:{default}:layout"
NOT_STANDING = "not standing for leader: no Redis"


def test_f17_foreign_redis_layout_is_refused_on_upgrade_and_rollback(rig: Rig) -> None:
    old = rig.start("controller")
    crowd = Crowd(rig, "f17-upgrade")
    crowd.until_full()
    new = rig.start("controller", layout=NEW)
    with rig.redis_server.client() as redis:
        old.kill(signal.SIGTERM)
        rig.took("the new one refuses", refuses(rig, new, "layout 1 .* layout 2"))
        left_alone(redis, crowd, "1")

        back = rig.start("controller")
        new.kill(signal.SIGTERM)
        rig.took("rolled back", resumes(rig, crowd))
        assert redis.get(LAYOUT) == b"1"
        assert back.metric("fairgate_leader") == 1

        again = rig.start("controller", layout=NEW)
        back.kill(signal.SIGTERM)
        refuses(rig, again, "layout 1 .* layout 2")
        forget(redis)  # as the message says
        rig.took("after the keys are deleted", resumes(rig, crowd))
        assert redis.get(LAYOUT) == b"2"

        older = rig.start("controller")
        again.kill(signal.SIGTERM)
        rig.took("the old one refuses", refuses(rig, older, "layout 2 .* layout 1"))
        left_alone(redis, crowd, "2")
        forget(redis)
        resumes(rig, crowd)
        assert redis.get(LAYOUT) == b"1"


def test_f17_leader_suspended_during_an_upgrade_writes_nothing(rig: Rig) -> None:
    old = rig.start("controller")
    crowd = Crowd(rig, "f17-asleep")
    crowd.until_full()
    # A leader that is stopped before it records a release loses the entry with Redis.
    rig.took("all releases are recorded", rig.until("they are", lambda: recorded(rig, crowd)))
    old.stop()
    new = rig.start("controller", layout=NEW)
    refuses(rig, new, "layout 1 .* layout 2")
    with rig.redis_server.client() as redis:
        forget(redis)
        resumes(rig, crowd)
        epoch = new.metric("fairgate_leader_epoch")
        old.cont()
        rig.until("the old one is awake", lambda: old.metric("fairgate_leader") == 0)
        resumes(rig, crowd)
        assert redis.get(LAYOUT) == b"2"
        assert new.metric("fairgate_leader") == 1
        assert new.metric("fairgate_leader_epoch") == epoch
        new.kill(signal.SIGTERM)
        refuses(rig, old, "layout 2 .* layout 1")
        forget(redis)
        resumes(rig, crowd)


def refuses(rig: Rig, program: Program, words: str) -> float:
    """Wait until it reports that it does not lead, and the reason."""

    def says() -> bool:
        lines = program.lines(NOT_STANDING)
        return bool(lines) and re.search(words, lines[-1]["facts"]["why"]) is not None

    took = rig.until("it refuses the layout", says)
    assert "delete the keys" in program.lines(NOT_STANDING)[-1]["facts"]["why"]
    assert program.metric("fairgate_leader") == 0
    return took


def left_alone(redis: Redis, crowd: Crowd, version: str) -> None:
    """Check that free capacity stays unused and that Redis is unchanged."""
    contents, waiting = dump(redis), crowd.held()
    crowd.leave(ROOM)
    assert crowd.held() == waiting
    assert dump(redis) == contents
    assert redis.get(LAYOUT) == version.encode()


def recorded(rig: Rig, crowd: Crowd) -> bool:
    """Return whether the audit chain has an entry for each release."""
    with rig.redis_server.client() as redis:
        entries = [json.loads(fields[b"entry"]) for _, fields in redis.xrange(AUDIT)]
    told = {entry["facts"].get("stamp") for entry in entries if entry["deed"] == "released"}
    return crowd.stamps() <= told


def resumes(rig: Rig, crowd: Crowd) -> float:
    """Free capacity if the pool is full, and wait until it is used."""
    if crowd.fills():
        crowd.leave(ROOM)
    return crowd.until_full()


def dump(redis: Redis) -> dict[bytes, bytes | None]:
    """Return all keys, without those that the webhook writes every few seconds."""
    keys = sorted(redis.scan_iter(KEYS))
    return {key: redis.dump(key) for key in keys if not key.startswith(ENFORCEMENT)}


def forget(redis: Redis) -> None:
    """Delete the keys that the message names with one atomic command."""
    redis.delete(*(key for key in redis.scan_iter(KEYS) if not key.startswith(AUDIT)))
