"""The observer itself on a real cluster: it follows all changes without a false alarm."""

from __future__ import annotations

from tests.faults.fault_cluster import Rig


def test_observer_follows_through_a_killed_api_server_and_is_content(rig: Rig) -> None:
    rig.start("controller")
    rig.leader()
    load = rig.load(pods=40, rate=20.0, runtime="1s")
    rig.until("some were created", lambda: load.total >= 20)
    rig.api_server.kill()
    rig.api_server.start()
    rig.until("the load is over", lambda: load.over)
    rig.until("all have finished", lambda: not unfinished(rig))
    report = rig.verdict()
    assert report["counts"]["pods"] >= load.total
    assert report["counts"]["released"] >= load.total
    assert report["counts"]["finished"] >= load.total
    assert report["blind"] == []
    assert report["bypassed"] == []


def unfinished(rig: Rig) -> list[str]:
    return [p["metadata"]["name"] for p in rig.pods() if p["status"].get("phase") != "Succeeded"]
