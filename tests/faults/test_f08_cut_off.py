"""F8: the leader is cut off from Redis or from the API server, or gets no more replies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.fault_cluster import Rig
from tests.faults.program import Program
from tests.faults.tcp_proxy import Cable
from tests.faults.waiting_pods import Crowd

ROOM = 4
REDIS_AWAY = "redis cannot be written; releases are paused"

FAULTS: dict[str, Callable[[Cable], None]] = {
    "cut": lambda cable: cable.cut(),
    "hung": lambda cable: cable.freeze(),
    "deaf": lambda cable: cable.freeze(replies_only=True),
}


def test_f08_no_pod_is_released_while_redis_is_unreachable(rig: Rig) -> None:
    # The lease is long enough to keep on a slow machine. Only Redis may be at fault here.
    leader = rig.start("controller", lease_seconds=15)
    crowd = Crowd(rig, "f08-redis")
    rig.took("full at first", crowd.until_full())
    for name, fault in FAULTS.items():
        waiting, warnings = crowd.held(), len(leader.lines(REDIS_AWAY))
        fault(leader.redis)
        crowd.leave(ROOM)
        noticed = rig.until("it knows", lambda: len(leader.lines(REDIS_AWAY)) > warnings)  # noqa: B023
        assert crowd.held() == waiting, f"{name}: released without an intent that stands"
        assert leader.metric("fairgate_leader") == 1
        leader.redis.mend()
        resumed = rig.until("it resumes", lambda: crowd.held() < waiting)  # noqa: B023
        crowd.until_full()
        rig.took(f"{name}: noticed after", noticed)
        rig.took(f"{name}: resumed after healing", resumed)


def test_f08_without_the_api_server_it_stops_leading_and_resumes(rig: Rig) -> None:
    leader = rig.start("controller")
    crowd = Crowd(rig, "f08-api")
    crowd.until_full()
    for name, fault in FAULTS.items():
        waiting = crowd.held()
        fault(leader.api)
        crowd.leave(ROOM)
        lost = rig.until("it stops leading", lambda: leads(leader) is False)
        assert crowd.held() == waiting, f"{name}: released by nobody we know of"
        leader.api.mend()
        resumed = rig.until("it resumes", lambda: crowd.held() < waiting)  # noqa: B023
        crowd.until_full()
        rig.took(f"{name}: stopped leading after", lost)
        rig.took(f"{name}: resumed after healing", resumed)


@pytest.mark.parametrize("lost", [False, True], ids=["late", "lost"])
def test_f08_releases_with_lost_replies_do_not_overfill_the_pool(rig: Rig, lost: bool) -> None:
    """Patches arrive, but replies do not. Released capacity counts until a watch event arrives."""
    # The lease is long enough to acquire over this proxy on a slow machine: four round trips.
    leader = rig.start("controller", release_concurrency=4, lease_seconds=15)
    leader.api.delay(0.1)
    crowd = Crowd(rig, "f08-replies")
    rig.until("the first are released", lambda: len(crowd.stamps()) > 1)
    leader.api.freeze(replies_only=True)
    heard = leader.metric("fairgate_release_total", 'result="released"') or 0
    rig.until("it stops leading", lambda: leads(leader) is False)
    rig.took("releases that it was not told of (pods)", len(crowd.stamps()) - heard)
    if lost:
        leader.api.drop()
    leader.api.mend()
    rig.took("full after healing", crowd.until_full())
    assert len(crowd.stamps()) == len(crowd.released())


def leads(program: Program) -> bool | None:
    value = program.metric("fairgate_leader")
    return None if value is None else value == 1
