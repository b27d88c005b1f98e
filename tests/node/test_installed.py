"""Fairgate runs from its image and chart: two teams' Jobs run with devices, one after the other."""

from __future__ import annotations

import pytest

from app.core.errors import ClusterError
from app.devcluster.fairgate_install import NAMESPACE
from tests.support.cluster_driver import Object, until
from tests.support.real_node import Installation, gpu_pod, job

PODS = 16
TEAMS = ("team-a", "team-b")


def test_jobs_of_two_teams_run_with_devices_and_finish(fairgate: Installation) -> None:
    before = len(fairgate.allocations())
    for team in TEAMS:
        fairgate.team(team)
    for team in TEAMS:
        fairgate.stage.apply(team, job("train", PODS))
    for team in TEAMS:
        until(
            f"the Job of {team} is complete", lambda team=team: _succeeded(fairgate, team) == PODS
        )

    devices = fairgate.allocations()[before:]
    assert len(devices) == 2 * PODS
    assert all(names.startswith("fake-") and "," not in names for names in devices)


def test_pods_of_fairgate_run_where_only_restricted_pods_are_accepted(
    fairgate: Installation,
) -> None:
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        fairgate.node.kubectl("run", "root", "-n", NAMESPACE, "--image=any", "--privileged")
    pods = fairgate.stage.get("pods", "-n", NAMESPACE)["items"]
    found = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    assert len(found) == 7  # two of each component, and Redis
    assert all(_is_ready(pod) for pod in found)


def test_helm_test_succeeds(fairgate: Installation) -> None:
    assert "Succeeded" in fairgate.helm("test", "fairgate", "--timeout", "120s")


def test_api_server_serves_the_rest_api_of_fairgate(fairgate: Installation) -> None:
    answer = fairgate.node.kubectl("get", "--raw", "/apis/api.fairgate.io/v1")
    assert '"APIResourceList"' in answer


def test_a_network_policy_may_be_added_and_removed(fairgate: Installation) -> None:
    fairgate.install("networkPolicy.enabled=true")
    assert fairgate.stage.get("networkpolicies", "-n", NAMESPACE)["items"]
    space = fairgate.team("behind-a-policy")
    fairgate.stage.apply(space, gpu_pod(1, args=("1s",), name="train"))
    until("the pod ran", lambda: _phase(fairgate, space) == "Succeeded")

    fairgate.install()
    assert not fairgate.stage.get("networkpolicies", "-n", NAMESPACE)["items"]


def _succeeded(fairgate: Installation, team: str) -> int:
    return int(fairgate.stage.get("job", "train", "-n", team)["status"].get("succeeded", 0))


def _phase(fairgate: Installation, space: str) -> str:
    return str(fairgate.stage.pods(space)[0]["status"]["phase"])


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
