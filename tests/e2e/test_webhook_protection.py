"""Fairgate's processes, under their own accounts, protect the configuration of their webhooks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
import redis

from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from app.kube import enforcement_canary, enforcement_probes
from app.kube.client import Client
from app.kube.event_recorder import EnforcementAlarm
from tests.fakes.fake_enforcement_metrics import Guarded
from tests.support.cluster_driver import GATE, NeverTrueError, Object, Stage, gates, pod, until

HOOKS = "mutatingwebhookconfigurations"
RESTORED = "fairgate_enforcement_restored_total"
OK = "fairgate_canary_ok"
RULE = "guard-test"


def hooks(stage: Stage) -> Object | None:
    try:
        found: Object = stage.get(HOOKS, "fairgate")
    except ClusterError:
        return None
    return found


def test_a_deleted_webhook_configuration_holds_pods_again(stage: Stage) -> None:
    namespace = stage.namespace("guarded")
    before = hooks(stage)
    assert before is not None
    restored = stage.metric("webhook", RESTORED, "Mutating")
    stage.cluster.kubectl("delete", HOOKS, "fairgate")
    until("it is back", lambda: hooks(stage) is not None)
    found = hooks(stage)
    assert found is not None
    assert found["webhooks"] == before["webhooks"]
    until("it is counted", lambda: stage.metric("webhook", RESTORED, "Mutating") > restored)

    def is_held() -> bool:
        said = stage.cluster.kubectl(
            "create", "--dry-run=server", "-o", "json", "-n", namespace, "-f", "-",
            stdin=json.dumps(pod("held")),
        )  # fmt: skip
        return GATE in gates(json.loads(said))

    until("pods are held", is_held)


def test_an_edited_webhook_configuration_is_as_before(stage: Stage) -> None:
    before = hooks(stage)
    assert before is not None
    patch = [
        {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"},
        {
            "op": "add",
            "path": "/webhooks/0/matchConditions/-",
            "value": {"name": "never", "expression": "false"},
        },
        {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"},
    ]
    stage.cluster.kubectl("patch", HOOKS, "fairgate", "--type=json", "-p", json.dumps(patch))

    def is_back() -> bool:
        found = hooks(stage)
        return found is not None and found["webhooks"] == before["webhooks"]

    until("it is as before", is_back)


def test_a_deleted_config_map_is_put_back(stage: Stage) -> None:
    what = ("configmap", "fairgate-enforcement", "-n", "fairgate-system")
    before = stage.get(*what)["data"]
    stage.cluster.kubectl("delete", *what)

    def is_back() -> bool:
        try:
            return bool(stage.get(*what)["data"] == before)
        except ClusterError:
            return False

    until("it is back", is_back)


def stored_result(stage: Stage) -> str:
    """Return the last result of the probes that a webhook replica has stored."""
    details = stage.cluster.details()
    with redis.Redis.from_url(details.redis) as server:
        for key in server.scan_iter("fairgate:*:enforcement"):
            return bytes(server.get(key) or b"").decode()
    return ""


def test_canary_pod_is_held_and_not_counted_as_pending(stage: Stage) -> None:
    until("it was tried", lambda: stage.metric("webhook", OK, 'check="hold"') == 1)
    until("its result is stored for the page", lambda: '"holes":{}' in stored_result(stage))
    found: Object = {}

    def is_there() -> bool:
        nonlocal found
        pods = stage.pods(enforcement_probes.NAMESPACE)
        found = pods[0] if pods else {}
        return bool(found)

    until("its pod is there", is_there)
    assert gates(found) == [enforcement_probes.OWN_GATE, GATE]
    # Another pod waits, so that the leader has updated its counts.
    waiting = stage.namespace("waiting")
    stage.apply(waiting, pod("waits", 999))
    pending = "fairgate_pending_workloads"
    until("it counts", lambda: stage.metric("controller", pending, f'"ns.{waiting}"') == 1)
    assert stage.metric("controller", pending, f'"ns.{enforcement_probes.NAMESPACE}"') == 0


# --- the canary against a real API server ---


class Trial:
    """A `Canary` run by a test, and its results."""

    def __init__(self, client: Client, *managed: str) -> None:
        self.guarded = Guarded()
        self.holes: Mapping[str, str] = {}
        self.canary = enforcement_canary.Canary(
            client,
            managed or ["nvidia.com/gpu"],
            seconds=3600,
            is_applied=lambda: True,
            observing=lambda: False,
            meters=self.guarded,
            alarm=EnforcementAlarm(client, "fairgate-system"),
            publish=self._publish,
        )

    async def _publish(self, holes: Mapping[str, str]) -> None:
        self.holes = holes

    async def shows(self, check: str, well: bool, tries: int = 200) -> None:
        """Probe until this result appears: API servers apply new policies with a delay."""
        for _ in range(tries):
            await self.canary.probe_all()
            if self.guarded.trials.get(check, [None])[-1] is well:
                return
        raise NeverTrueError(f"{check} is never {well}")


@pytest.fixture
async def client(fairgate_cluster: LocalCluster) -> AsyncIterator[Client]:
    client = await Client.connect(fairgate_cluster.kubeconfig)
    yield client
    await client.close()


@pytest.fixture
def forbidden(fairgate_cluster: LocalCluster) -> Iterator[None]:
    """Install a policy that forbids removing a gate in the canary's namespace."""
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": RULE},
        "spec": {
            "matchConstraints": {
                "namespaceSelector": {
                    "matchLabels": {"kubernetes.io/metadata.name": enforcement_probes.NAMESPACE}
                },
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods"],
                    }
                ],
            },
            "validations": [
                {"expression": "size(object.spec.schedulingGates) == 2", "message": "gates stay"}
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": RULE},
        "spec": {"policyName": RULE, "validationActions": ["Deny"]},
    }
    fairgate_cluster.kubectl(
        "apply", "-f", "-", stdin=f"{json.dumps(policy)}\n---\n{json.dumps(binding)}"
    )
    yield
    for kind in ("validatingadmissionpolicybinding", "validatingadmissionpolicy"):
        fairgate_cluster.kubectl("delete", kind, RULE, "--ignore-not-found")


async def test_a_gate_that_holds_is_found_to_hold(client: Client, forbidden: None) -> None:
    trial = Trial(client)
    await trial.shows(enforcement_canary.RELEASE, True)
    await trial.shows(enforcement_canary.HOLD, True)


async def test_canary_reports_that_the_gate_can_be_removed(client: Client) -> None:
    """A cluster administrator may do anything, so no policy blocks the attempt."""
    await Trial(client).shows(enforcement_canary.RELEASE, False)


async def test_canary_reports_a_pod_that_is_not_held(client: Client) -> None:
    await Trial(client, "example.com/unmanaged").shows(enforcement_canary.HOLD, False)
