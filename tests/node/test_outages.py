"""Parts of an installed Fairgate restart, die or go away while pods are created."""

from __future__ import annotations

from app.devcluster.fairgate_install import NAMESPACE
from tests.support.cluster_driver import until
from tests.support.real_node import Installation, gpu_pod

WEBHOOK = "deployment/fairgate-webhook"


def test_no_creation_fails_while_the_webhook_restarts(fairgate: Installation) -> None:
    space = fairgate.team("rolling")
    with fairgate.load(space) as load:
        load.wait()
        fairgate.node.kubectl("rollout", "restart", "-n", NAMESPACE, WEBHOOK)
        fairgate.node.kubectl("rollout", "status", "-n", NAMESPACE, WEBHOOK, "--timeout=115s")
        until("the old replicas are gone", lambda: len(fairgate.webhooks()) == 2)
        load.wait()
    assert load.failures == []
    assert load.unheld == 0


def test_pod_creation_continues_after_a_webhook_replica_is_killed(fairgate: Installation) -> None:
    """Requests on the way to the killed replica fail. None passes without the gate."""
    space = fairgate.team("killed")
    victim = fairgate.webhooks()[0]
    with fairgate.load(space) as load:
        load.wait()
        fairgate.kill(victim)
        until("the replica is back", lambda: _is_back(fairgate, victim["metadata"]["name"]))
        load.wait()
        failed = len(load.failures)
        load.wait()
        assert len(load.failures) == failed
    assert load.unheld == 0
    assert failed < load.created / 10, load.failures


def test_pods_wait_while_redis_is_gone_and_run_when_it_is_back(fairgate: Installation) -> None:
    space = fairgate.team("no-redis")
    fairgate.scale_redis(0)
    with fairgate.load(space) as load:
        fairgate.stage.apply(space, gpu_pod(1, args=("1s",), name="train"))
        load.wait()
    assert load.failures == []
    assert "train" in fairgate.stage.held(space)

    fairgate.scale_redis(1)
    until("the pod ran", lambda: _ran(fairgate, space))


def _is_back(fairgate: Installation, name: str) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in fairgate.webhooks()}
    status = pods[name]["status"]["containerStatuses"][0]
    return bool(status["restartCount"] == 1 and status["ready"])


def _ran(fairgate: Installation, space: str) -> bool:
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in fairgate.stage.pods(space)}
    return phases["train"] == "Succeeded"
