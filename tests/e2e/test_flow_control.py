"""The API server serves Fairgate's own requests apart from those of other service accounts."""

from __future__ import annotations

import re

from tests.support.cluster_driver import Stage, until

DISPATCHED = re.compile(
    r'^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="(fairgate[a-z-]*)",'
    r'priority_level="([a-z-]+)"\} (\d+)',
    re.M,
)


def test_leases_and_releases_have_seats_of_their_own(stage: Stage) -> None:
    wanted = {("fairgate", "fairgate"), ("fairgate-leader", "leader-election")}

    def served() -> bool:
        metrics = stage.cluster.kubectl("get", "--raw", "/metrics")
        found = DISPATCHED.findall(metrics)
        return {(schema, level) for schema, level, count in found if int(count) > 1} == wanted

    until("both flow schemas have served requests", served)
    for kind, name in (("flowschema", "fairgate"), ("flowschema", "fairgate-leader")):
        conditions = stage.get(kind, name)["status"]["conditions"]
        assert [(each["type"], each["status"]) for each in conditions] == [("Dangling", "False")]
