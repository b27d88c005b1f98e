"""The checks of `fairgate doctor`, on in-memory clusters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta

import pytest
import yaml

from app.commands.doctor.assumptions import planned_settings
from app.commands.doctor.checks import run_checks
from app.commands.doctor.findings import Check, Finding, Level
from app.commands.doctor.redis_checks import RedisServer, check_server
from app.commands.doctor.snapshot import watch_expired_lease
from app.controller.outage_detector import NO_REDIS, NO_WRITES
from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput
from app.core.policy import ENFORCE_COMMAND
from tests.fakes.fake_cluster_survey import FakeSurvey
from tests.support.doctor_cluster import (
    AGENTS,
    BINDER,
    BINDINGS,
    GPU,
    ON_GPU_NODES,
    RAY_CLUSTERS,
    ROLES,
    UNKNOWN_KIND,
    cluster_role,
    daemon_set,
    made,
    pod,
    role_binding,
)
from tests.support.doctor_rig import HOME, NOW, Object, cluster, installed, look, time_of

REDIS = "redis: {url: 'redis://redis:6379/0'}\n"
"""A part of a values file."""


def found(
    *objects: Object, values: str = "", version: str = "v1.36.0", forbidden: Iterable[str] = ()
) -> dict[Check, list[Finding]]:
    """Return the findings that are not ok, by check."""
    fake = cluster(*objects, version=version, forbidden=forbidden)
    findings: dict[Check, list[Finding]] = {}
    for each in run_checks(look(fake, values), HOME, NOW):
        if each.level is not Level.OK:
            findings.setdefault(each.check, []).append(each)
    return findings


def only(findings: dict[Check, list[Finding]], check: Check) -> Finding:
    """Return the single finding, which must be of this check."""
    assert list(findings) == [check]
    [finding] = findings[check]
    return finding


def test_a_cluster_in_order_has_only_findings_that_are_ok() -> None:
    assert found(pod("team-a", "train", 2)) == {}


def test_every_agent_in_use_is_named_with_its_namespace_and_purpose() -> None:
    findings = found(*AGENTS)[Check.NAMESPACES]
    assert [(f.objects, f.level) for f in findings] == [
        ((f"DaemonSet {space}/{name}",), Level.PROBLEM)
        for space, name in (
            ("aws-ebs-csi", "ebs-csi-node"),
            ("calico-system", "calico-node"),
            ("cilium", "cilium"),
            ("monitoring", "node-exporter"),
            ("nvidia-device-plugin", "nvidia-device-plugin"),
        )
    ]
    text = "\n".join(each.line for each in findings)
    assert "calico-node (network plugin, privileged container)" in text
    assert "node-exporter (monitoring agent, hostPath volume with devices)" in text
    assert "nvidia-device-plugin (device plugin, toleration of a GPU taint)" in text
    assert "Add cilium to extraExemptNamespaces." in text


def test_agents_in_exempt_namespaces_are_in_order() -> None:
    spaces = [each["metadata"]["namespace"] for each in AGENTS]
    assert found(*AGENTS, values=f"{REDIS}extraExemptNamespaces: {spaces}") == {}


def test_a_namespace_with_agents_and_gpu_pods_is_not_to_be_exempted() -> None:
    agent = daemon_set("team-a", "shell", "agent", privileged=True)
    finding = only(found(agent, pod("team-a", "train", 1)), Check.NAMESPACES)
    assert "Move the agents to a namespace of their own" in finding.remedy
    assert finding.level is Level.PROBLEM


def test_a_privileged_pod_that_is_no_agent_is_refused_and_its_namespace_not_exempted() -> None:
    privileged = pod("ci", "build")
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    finding = only(found(privileged), Check.PODS)
    assert finding.objects == ("Pod ci/build",)
    assert "set privileged to false" in finding.remedy


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ({"priorityClassName": "system-node-critical"}, "PriorityClass system-node-critical"),
        ({"tolerations": [{"key": f"k{i}"} for i in range(51)]}, "50 tolerations"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}]}, "hostPath"),
    ],
)
def test_gpu_pods_are_judged_by_the_rules_of_the_webhook(spec: Object, part: str) -> None:
    finding = only(found(pod("team-a", "train", 1, **spec)), Check.PODS)
    assert part in finding.remedy


def test_a_gpu_pod_that_runs_already_is_not_refused_for_its_node_or_class() -> None:
    running = pod("team-a", "train", 1, nodeName="n", preemptionPolicy="PreemptLowerPriority")
    assert found(running) == {}


def test_a_pod_that_fairgate_held_is_not_refused_for_its_stamps() -> None:
    held = pod("team-a", "train", 1, schedulingGates=[{"name": "fairgate.io/queue"}])
    held["metadata"]["labels"] = {"fairgate.io/tenant": "a", "fairgate.io/user": "b"}
    held["metadata"]["annotations"] = {"fairgate.io/release": "0"}
    assert found(held) == {}


def test_pods_count_for_their_deployment_or_cron_job() -> None:
    owned = pod("ci", "web-abc-x", hostPID=True)
    owned["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    owned["metadata"]["labels"] = {"pod-template-hash": "abc"}
    owner = {"kind": "ReplicaSet", "name": "web-abc", "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    assert only(found(owned), Check.PODS).objects == ("Deployment ci/web",)
    template = {"spec": pod("", "")["spec"]}
    job = made("Job", "batch/v1", "night-1", "ci", spec={"template": template})
    job["metadata"]["ownerReferences"] = [{"kind": "CronJob", "name": "night", "controller": True}]
    owned["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "night-1", "controller": True}]
    assert only(found(job, owned), Check.PODS).objects == ("CronJob ci/night",)


def test_ended_pods_are_left_out() -> None:
    ended = pod("ci", "build", tolerations=ON_GPU_NODES) | {"status": {"phase": "Succeeded"}}
    assert found(ended) == {}


def test_gpu_pods_in_exempt_namespaces_are_reported() -> None:
    finding = only(found(pod("kube-system", "train", 1)), Check.NAMESPACES)
    assert (finding.level, finding.objects) == (Level.WARNING, ("Pod kube-system/train",))


def test_another_scheduler_and_its_account_are_named() -> None:
    findings = found(pod("team-a", "train", 1, schedulerName="volcano"), ROLES[0], BINDINGS[0])
    names, account = findings[Check.SCHEDULERS]
    assert "scheduler volcano" in names.message
    assert names.objects == ("Pod team-a/train",)
    assert account.objects == (BINDER,)
    values = f"{REDIS}schedulers: {{names: [default-scheduler, volcano], users: ['{BINDER}']}}"
    listed = pod("team-a", "train", 1, schedulerName="volcano")
    assert found(listed, ROLES[0], BINDINGS[0], values=values) == {}


def test_the_stock_scheduler_and_controllers_may_bind() -> None:
    rule = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}
    daemon_sets = "system:serviceaccount:kube-system:daemon-set-controller"
    assert found(
        cluster_role("scheduler", rule),
        role_binding("scheduler", "system:kube-scheduler"),
        cluster_role("daemons", rule),
        role_binding("daemons", daemon_sets),
    ) == {}  # fmt: skip


def test_an_operator_is_named_if_its_kind_is_not_listed() -> None:
    [kind] = found(UNKNOWN_KIND, *ROLES[2:], *BINDINGS[2:])[Check.OPERATORS]
    assert (kind.level, kind.objects) == (Level.WARNING, ("trainings.batch.example.com",))
    assert kind.remedy == "Add Training to extraPodTemplates."


def test_an_operator_of_a_listed_kind_needs_no_entry() -> None:
    assert Check.OPERATORS not in found(RAY_CLUSTERS, ROLES[1], BINDINGS[1])


def test_the_paths_of_templates_are_found_in_the_schema_of_a_kind() -> None:
    seen = look(cluster(RAY_CLUSTERS, UNKNOWN_KIND))
    assert {each.resource: each.paths for each in seen.kinds} == {
        "rayclusters": ("spec.headGroupSpec.template", "spec.workerGroupSpecs[*].template"),
        "trainings": ("spec.replicas{*}.template",),
    }


def test_accelerators_that_are_not_managed_are_named_and_other_devices_are_not() -> None:
    capacity = {"habana.ai/gaudi": "8", "rdma/hca": "1", GPU: "1", "nvidia.com/mig-1g.5gb": "2"}
    finding = only(found(made("Node", "v1", "m", status={"capacity": capacity})), Check.DEVICES)
    assert finding.objects == ("habana.ai/gaudi",)


def test_device_classes_that_count_as_no_resource_are_named() -> None:
    counted = made("DeviceClass", "x", "gpu.nvidia.com", spec={})
    extended = made("DeviceClass", "x", "a", spec={"extendedResourceName": "nvidia.com/gpu"})
    other = made("DeviceClass", "x", "tpu.example.com", spec={})
    finding = only(found(counted, extended, other), Check.DEVICE_CLASSES)
    assert (finding.level, finding.objects) == (Level.WARNING, ("tpu.example.com",))


def test_older_versions_of_dra_are_not_read() -> None:
    fake = cluster()
    beta = "resource.k8s.io/v1beta1"
    fake.documents["/apis/resource.k8s.io"] = {"preferredVersion": {"groupVersion": beta}}
    fake.add(f"/apis/{beta}/deviceclasses", [made("DeviceClass", "x", "gpu.nvidia.com", spec={})])
    findings = [e for e in run_checks(look(fake), HOME, NOW) if e.check is Check.DEVICE_CLASSES]
    assert (findings[0].level, findings[0].objects) == (Level.WARNING, (beta,))


def test_a_class_with_the_name_of_a_twin_is_a_problem() -> None:
    high = made("PriorityClass", "scheduling.k8s.io/v1", "high", value=10)
    taken = made("PriorityClass", "scheduling.k8s.io/v1", "fairgate-high", value=3)
    findings = found(high, taken)
    assert only(findings, Check.PRIORITIES).objects == ("fairgate-high",)
    assert found(high) == {}


def quota(namespace: str, *classes: str) -> Object:
    term = {"scopeName": "PriorityClass", "operator": "In", "values": list(classes)}
    spec = {"hard": {"pods": "5"}, "scopeSelector": {"matchExpressions": [term]}}
    return made("ResourceQuota", "v1", "limit", namespace, spec=spec)


def test_a_quota_that_names_a_class_must_name_its_twin() -> None:
    high = made("PriorityClass", "scheduling.k8s.io/v1", "high", value=10)
    finding = only(found(high, quota("team-a", "high")), Check.QUOTAS)
    assert "Name fairgate-high" in finding.remedy
    assert found(high, quota("team-a", "high", "fairgate-high")) == {}


def test_a_quota_for_critical_pods_is_needed_for_fairgate_too() -> None:
    critical = "system-cluster-critical"
    finding = only(found(quota("kube-system", critical)), Check.QUOTAS)
    assert f"Create the same ResourceQuota in {HOME}" in finding.remedy
    assert found(quota("kube-system", critical), quota(HOME, critical)) == {}


@pytest.mark.parametrize(
    ("version", "level"),
    [("v1.29.9", Level.PROBLEM), ("v1.31.0-gke.1", Level.WARNING), ("v1.37.2", None)],
)
def test_the_version_of_kubernetes_is_compared(version: str, level: Level | None) -> None:
    findings = found(version=version)
    assert [each.level for each in findings.get(Check.KUBERNETES, ())] == ([level] if level else [])


def test_a_missing_right_is_a_problem_that_names_it() -> None:
    findings = found(forbidden=["/pods", "/clusterroles"])
    assert [each.level for each in findings[Check.RIGHTS]] == [Level.PROBLEM, Level.PROBLEM]
    assert "Grant the verb list on pods" in findings[Check.RIGHTS][1].remedy


def test_custom_resources_that_cannot_be_read_are_a_warning() -> None:
    rights = found(UNKNOWN_KIND, forbidden=["/trainings"])[Check.RIGHTS]
    assert [(f.level, f.objects) for f in rights] == [
        (Level.WARNING, ("trainings.batch.example.com",))
    ]


def test_a_broken_conversion_webhook_does_not_end_the_command() -> None:
    class Broken(FakeSurvey):
        async def list_pages(self, path: str, size: int) -> AsyncIterator[list[Object]]:
            if path.endswith("/trainings"):
                raise ClusterUnavailable("conversion webhook failed")
            async for page in super().list_pages(path, size):
                yield page

    sound = cluster(UNKNOWN_KIND, *AGENTS)
    seen = look(Broken(sound.lists, sound.documents))
    assert seen.failed_lists == {"trainings.batch.example.com": "conversion webhook failed"}
    assert len(seen.workloads) == len(AGENTS)


def test_refused_credentials_end_the_command() -> None:
    class Expired(FakeSurvey):
        async def get(self, path: str) -> Object | None:
            raise ClusterRefused("401 Unauthorized", 401)

    with pytest.raises(ClusterUnavailable, match="log in again"):
        look(Expired())


# --- an installed Fairgate ---


def judged(**changes: Object) -> dict[Check, list[Finding]]:
    return found(*installed(**changes).values())


def test_an_installation_in_order_has_no_finding() -> None:
    assert judged() == {}


def test_the_settings_of_the_installation_are_judged() -> None:
    assert found(*installed().values(), AGENTS[0]) == {}
    assert Check.NAMESPACES in found(*installed().values(), AGENTS[1])


def test_endpoints_that_are_not_ready_are_a_problem() -> None:
    slices = installed()["EndpointSlice"]
    slices["endpoints"] = [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]
    finding = only(judged(EndpointSlice=slices), Check.WEBHOOKS)
    assert "no ready endpoint" in finding.message


def test_in_mode_observe_an_absent_endpoint_refuses_no_pod() -> None:
    slices = installed()["EndpointSlice"]
    slices["endpoints"] = []
    policy = made("Policy", "x", "default", spec={"mode": "Observe"})
    [finding] = judged(EndpointSlice=slices, Policy=policy)[Check.WEBHOOKS]
    assert "no ready endpoint, so pods that would be held or refused are not" in finding.message


def test_a_webhook_without_ca_is_a_problem() -> None:
    item = installed()["MutatingWebhookConfiguration"]
    item["webhooks"] = [{"name": "hold.fairgate.io", "clientConfig": {"service": {}}}]
    finding = only(judged(MutatingWebhookConfiguration=item), Check.WEBHOOKS)
    assert finding.objects == ("hold.fairgate.io",)


@pytest.mark.parametrize("age", [None, timedelta(minutes=2)])
def test_a_lease_without_holder_or_that_expired_is_a_problem(age: timedelta | None) -> None:
    spec = (
        {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": time_of(age)}
        if age
        else {}
    )
    finding = only(
        judged(Lease=made("Lease", "x", "fairgate-controller", HOME, spec=spec)), Check.LEADER
    )
    assert finding.level is Level.PROBLEM


@pytest.mark.parametrize(("renews", "level"), [(True, Level.OK), (False, Level.PROBLEM)])
def test_an_expired_lease_is_read_again_before_it_is_a_problem(renews: bool, level: Level) -> None:
    spec = {"holderIdentity": "a", "leaseDurationSeconds": 0, "renewTime": "2026-01-01T11:59:00Z"}
    fake = cluster(
        *installed(Lease=made("Lease", "x", "fairgate-controller", HOME, spec=spec)).values()
    )
    seen = look(fake)
    if renews:
        renewed = {**spec, "renewTime": "2026-01-01T11:59:05Z"}
        again = made("Lease", "x", "fairgate-controller", HOME, spec=renewed)
        fake = cluster(*installed(Lease=again).values())
    asyncio.run(watch_expired_lease(fake, HOME, seen))
    [finding] = [each for each in run_checks(seen, HOME, NOW) if each.check is Check.LEADER]
    assert finding.level is level


UNREACHABLE = "No pod is released: Redis at redis:6379 cannot be reached: no answer."


@pytest.mark.parametrize("reason", [NO_REDIS, NO_WRITES])
def test_missing_leader_finding_includes_events_of_the_controllers(reason: str) -> None:
    event = made(
        "Event", "v1", "e", HOME, reason=reason, message=UNREACHABLE,
        lastTimestamp=time_of(timedelta(minutes=1)),
    )  # fmt: skip
    lease = made("Lease", "x", "fairgate-controller", HOME, spec={})
    assert UNREACHABLE in only(judged(Event=event, Lease=lease), Check.LEADER).message
    led = only(judged(Event=event), Check.LEADER)
    assert (led.level, UNREACHABLE in led.message) == (Level.WARNING, True)


@pytest.mark.parametrize("age", [None, timedelta(minutes=2)])
@pytest.mark.parametrize("in_policy", [False, True])
def test_a_missing_leader_is_reported_once(age: timedelta | None, in_policy: bool) -> None:
    spec = (
        {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": time_of(age)}
        if age
        else {}
    )
    told = {"reason": "NoLeader", "message": "No pod is released: no controller of Fairgate leads."}
    event = made("Event", "v1", "e", HOME, **told, lastTimestamp=time_of(timedelta(minutes=1)))
    condition = {"type": "Releasing", "status": "False", **told}
    more = {"Event": event}
    if in_policy:
        more = {"Policy": made("Policy", "x", "default", status={"conditions": [condition]})}
    lease = made("Lease", "x", "fairgate-controller", HOME, spec=spec)
    message = only(judged(Lease=lease, **more), Check.LEADER).message
    assert message.endswith("so no pod is released.")
    assert "controller of Fairgate" not in message


@pytest.mark.parametrize(("status", "level"), [("False", Level.PROBLEM), ("True", None)])
def test_a_leader_that_cannot_release_is_a_problem(status: str, level: Level | None) -> None:
    condition = {"type": "Releasing", "status": status, "message": UNREACHABLE}
    policy = made("Policy", "x", "default", status={"conditions": [condition]})
    findings = judged(Policy=policy)
    assert [each.level for each in findings.get(Check.LEADER, ())] == [level] * bool(level)


def component(name: str, container: Object, *conditions: Object, **status: Object) -> Object:
    """Return a pod of Fairgate that is not ready."""
    item = made("Pod", "v1", f"fairgate-{name}-1", HOME, spec={}, status=status)
    item["metadata"] |= {"uid": name, "creationTimestamp": time_of(timedelta(minutes=2))}
    labels = {"app.kubernetes.io/name": "fairgate", "app.kubernetes.io/component": name}
    item["metadata"]["labels"] = labels
    item["status"] = {"containerStatuses": [container], "conditions": list(conditions), **status}
    return item


def waiting(reason: str, message: str = "") -> Object:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


CREATING = waiting("ContainerCreating")
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1"}
FELL = {"terminated": {"exitCode": 2, "message": "fairgate: the Redis URL is wrong."}}


@pytest.mark.parametrize(
    ("pod_of_fairgate", "parts"),
    [
        (
            component("webhook", waiting("ImagePullBackOff", 'Back-off pulling image "x/y:1"')),
            (
                "1 pod of fairgate-webhook is not ready: ImagePullBackOff",
                "x/y:1",
                "image.repository",
            ),
        ),
        (component("webhook", CREATING), ('FailedMount: secret "tls" not found', "Create")),
        (
            component("api", {**waiting("CrashLoopBackOff"), "lastState": FELL}),
            ("CrashLoopBackOff: fairgate: the Redis URL is wrong.", "logs --previous"),
        ),
        (component("controller", CREATING, NO_NODE), ("Unschedulable: 0/1", "add a node")),
        (component("api", {"state": {"running": {}}}), ("1 pod of fairgate-api is not ready.",)),
        (
            component("api", {"state": {"running": {}}, "lastState": FELL}),
            ("1 pod of fairgate-api is not ready.",),
        ),
        (
            component("api", {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}),
            ("1 pod of fairgate-api is not ready: OOMKilled: exit code 137.",),
        ),
    ],
)
def test_a_pod_of_fairgate_that_does_not_run_is_a_problem_with_its_reason(
    pod_of_fairgate: Object, parts: tuple[str, ...]
) -> None:
    mount = made(
        "Event", "v1", "e", HOME, reason="FailedMount", message='secret "tls" not found',
        type="Warning", involvedObject={"uid": "webhook"}, lastTimestamp=time_of(timedelta()),
    )  # fmt: skip
    objects = [*installed().values(), pod_of_fairgate, mount]
    finding = only(found(*objects), Check.COMPONENTS)
    assert finding.level is Level.PROBLEM
    assert [part for part in parts if part not in finding.line] == []


def test_pods_that_cannot_be_created_are_a_problem() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"}
    deployment = installed()["Deployment"] | {"status": {"conditions": [failure]}}
    finding = only(judged(Deployment=deployment), Check.COMPONENTS)
    assert "violates PodSecurity" in finding.message


@pytest.mark.parametrize(
    ("replicas", "level", "message"),
    [
        (0, Level.PROBLEM, "Deployment fairgate-webhook is scaled to 0 replicas."),
        (1, None, ""),
        (2, Level.WARNING, "Deployment fairgate-webhook has 1 of 2 pods."),
    ],
)
def test_a_deployment_with_fewer_pods_than_replicas_is_reported(
    replicas: int, level: Level | None, message: str
) -> None:
    deployment = installed()["Deployment"]
    deployment["spec"]["replicas"] = replicas
    findings = judged(Deployment=deployment).get(Check.COMPONENTS, [])
    assert [(each.level, each.message) for each in findings] == [(level, message)] * bool(level)


def test_a_rest_api_that_is_turned_off_is_in_order() -> None:
    labels = component("api", CREATING)["metadata"]["labels"]
    spec = {"replicas": 0, "template": {"metadata": {"labels": labels}}}
    api = made("Deployment", "apps/v1", "fairgate-api", HOME, spec=spec)
    assert found(*installed().values(), api) == {}


def test_pods_of_other_applications_are_no_pods_of_fairgate() -> None:
    foreign = made("Pod", "v1", "redis-0", HOME, spec={})
    other = made("Deployment", "apps/v1", "fairgate-exporter", HOME, spec={"template": {}})
    finding = only(found(*installed(WebhookPod=foreign).values(), other), Check.COMPONENTS)
    assert finding.level is Level.PROBLEM
    assert finding.message == "Deployment fairgate-webhook has 0 of 1 pod."


def test_a_pod_that_has_just_been_created_is_a_warning() -> None:
    young = component("webhook", CREATING)
    young["metadata"]["creationTimestamp"] = time_of(timedelta(seconds=5))
    finding = only(found(*installed().values(), young), Check.COMPONENTS)
    assert finding.level is Level.WARNING


def test_mode_observe_is_a_warning() -> None:
    chart = made("ConfigMap", "v1", "fairgate-enforcement", HOME, data={"mode": "Observe"})
    finding = only(
        judged(Policy=made("Policy", "x", "default", spec={}), ConfigMap=chart), Check.MODE
    )
    assert finding.level is Level.WARNING
    assert "Policy default" not in finding.line


def test_a_policy_that_overrides_the_chart_by_observe_is_a_warning_with_the_command() -> None:
    """`fairgate release --all` leaves such a Policy, also for the next installation."""
    chart = made("ConfigMap", "v1", "fairgate-enforcement", HOME, data={"mode": "Enforce"})
    observe = made("Policy", "x", "default", spec={"mode": "Observe"})
    finding = only(judged(Policy=observe, ConfigMap=chart), Check.MODE)
    assert finding.level is Level.WARNING
    assert "Policy default has mode Observe, which overrides the chart" in finding.message
    assert finding.remedy.endswith(ENFORCE_COMMAND)


@pytest.mark.parametrize(("own", "observes"), [({}, True), ({"mode": "Enforce"}, False)])
def test_the_policy_overrides_the_mode_of_the_chart(own: Object, observes: bool) -> None:
    chart = made("ConfigMap", "v1", "fairgate-enforcement", HOME, data={"mode": "Observe"})
    policy = made("Policy", "x", "default", spec=own)
    assert (Check.MODE in judged(Policy=policy, ConfigMap=chart)) is observes


BINDING = "ValidatingAdmissionPolicyBinding"
ADMISSION = "admissionregistration.k8s.io/v1"


def rules(mode: str, *, failure: str = "Fail", actions: str = "Deny") -> dict[str, Object]:
    """Return the objects of an installation whose webhooks and only policy are like this."""
    hook = {"name": "hold.fairgate.io", "clientConfig": {"url": "https://x", "caBundle": "eA=="}}
    webhooks = made(
        "MutatingWebhookConfiguration", ADMISSION, "fairgate",
        webhooks=[{**hook, "failurePolicy": failure}],
    )  # fmt: skip
    binding = made(BINDING, ADMISSION, "fairgate-pods", spec={"validationActions": [actions]})
    documents = yaml.safe_dump_all([webhooks, binding])
    data = {"mode": mode, "rules.yaml": documents}
    return {
        "ConfigMap": made("ConfigMap", "v1", "fairgate-enforcement", HOME, data=data),
        "Policy": made("Policy", "x", "default", spec={}),
        "MutatingWebhookConfiguration": webhooks,
        BINDING: binding,
    }


def test_rules_that_deny_in_mode_enforce_are_no_finding() -> None:
    assert judged(**rules("Enforce")) == {}


@pytest.mark.parametrize(
    ("weak", "named"),
    [({"failure": "Ignore"}, "MutatingWebhookConfiguration"), ({"actions": "Audit"}, BINDING)],
)
def test_a_rule_that_does_not_deny_in_mode_enforce_is_a_problem(
    weak: dict[str, str], named: str
) -> None:
    finding = only(judged(**rules("Enforce", **weak)), Check.RULES)
    assert finding.level is Level.PROBLEM
    assert [each.partition(" ")[0] for each in finding.objects] == [named]


def test_a_missing_binding_in_mode_enforce_is_a_problem() -> None:
    objects = rules("Enforce")
    del objects[BINDING]
    message = only(judged(**objects), Check.RULES).message
    assert message.startswith("the mode is Enforce, but 1 rule does not deny: ")


def test_a_rule_that_denies_in_mode_observe_is_a_problem() -> None:
    [finding] = judged(**rules("Observe", failure="Ignore"))[Check.RULES]
    assert finding.objects == (f"{BINDING} fairgate-pods",)
    assert Check.RULES not in judged(**rules("Observe", failure="Ignore", actions="Audit"))


def test_a_canary_that_is_not_held_is_a_problem() -> None:
    free = pod("fairgate-canary", "fairgate-canary", 1)
    assert only(judged(Pod=free), Check.CANARY).level is Level.PROBLEM


def test_recent_alarms_are_reported_and_old_ones_are_not() -> None:
    def alarm(age: timedelta) -> Object:
        text = {"reason": "EnforcementFails", "message": "not held", "lastTimestamp": time_of(age)}
        return made("Event", "v1", "e", HOME, **text)

    assert "not held" in only(judged(Event=alarm(timedelta(minutes=1))), Check.CANARY).message
    assert judged(Event=alarm(timedelta(hours=1))) == {}


def test_equal_alarms_are_one_finding_with_count_and_last_time() -> None:
    reasons = {3: "EnforcementFails", 2: "EnforcementRestored", 1: "EnforcementFails"}
    events = [
        made(
            "Event", "v1", f"e{age}", HOME, reason=reason, message="m",
            lastTimestamp=time_of(timedelta(minutes=age)),
        )
        for age, reason in reasons.items()
    ]  # fmt: skip
    messages = [each.message for each in found(*installed().values(), *events)[Check.CANARY]]
    assert messages == [
        "in the last ten minutes, 2 times, last at 11:59:00 UTC: EnforcementFails: m",
        "in the last ten minutes, at 11:58:00 UTC: EnforcementRestored: m",
    ]


# --- Redis ---


@pytest.mark.parametrize(
    ("server", "level", "part"),
    [
        (RedisServer("7.2.4", 0, "noeviction"), Level.OK, "answers"),
        (RedisServer("6.0.16", 0, "noeviction"), Level.PROBLEM, "6.0.16"),
        (RedisServer("7.2.4", 10**9, "allkeys-lru"), Level.PROBLEM, "evicts keys"),
        (RedisServer("7.2.4", 10**8, "noeviction"), Level.WARNING, "maxmemory of 100 MB"),
    ],
)
def test_a_redis_server_is_judged(server: RedisServer, level: Level, part: str) -> None:
    [finding] = check_server(server, "redis:6379", 100)
    assert finding.level is level
    assert part in finding.message


def test_the_size_of_redis_is_a_sum() -> None:
    pods = [pod("team-a", f"train-{number}", 1) for number in range(2000)]
    findings = run_checks(look(cluster(*pods)), HOME, NOW)
    [size] = [each for each in findings if each.check is Check.REDIS]
    assert "355 MB: 3 MB for 2000 pods with devices, 96 MB for usage records" in size.message
    assert "set maxmemory to 512 MB or more" in size.message


def with_condition(kind: str, name: str, **condition: str) -> Object:
    return made(kind, "x", name, spec={}, status={"conditions": [condition]})


def test_conditions_that_block_workloads_are_reported() -> None:
    fault = {"type": "QuotasInForce", "status": "False", "reason": "PoolMissing"}
    left_out = {"type": "NodesLeftOut", "status": "True", "reason": "InNoPool"}
    findings = found(
        *installed().values(),
        with_condition("Tenant", "vision", **fault, message="pool h10 does not exist"),
        *(with_condition("Pool", name, **left_out, message="2 nodes") for name in ("a", "b")),
        with_condition("Pool", "c", type="Ready", status="False", reason="Paused", message="no"),
        with_condition("Pool", "d", type="Ready", status="True", reason="InForce", message="ok"),
    )
    assert list(findings) == [Check.CONDITIONS]
    assert [each.message for each in findings[Check.CONDITIONS]] == [
        "PoolMissing of Tenant vision: pool h10 does not exist.",
        "InNoPool of Pool a, Pool b: 2 nodes.",
    ]


# --- the values file ---


NAMING = """
redis: {existingSecret: url-of-redis}
tls: {existingSecret: certificate}
imagePullSecrets: [{name: registry}]
priorityClassName: gpu-platform
"""


def secret(name: str, *keys: str) -> Object:
    return made("Secret", "v1", name, HOME, data=dict.fromkeys(keys, "eA=="))


def test_each_object_that_a_values_file_names_must_exist() -> None:
    problems = found(values=NAMING)[Check.COMPONENTS]
    assert {each.level for each in problems} == {Level.PROBLEM}
    assert [each.objects for each in problems] == [
        ("Secret url-of-redis",),
        ("Secret certificate",),
        ("Secret registry",),
        ("PriorityClass gpu-platform",),
    ]
    assert problems[0].message == (
        f"redis.existingSecret names Secret url-of-redis in namespace {HOME}, which does not exist."
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ("mode: Enforce", "the values file names no Redis"),
        ("redis: {bundled: {enabled: false}}", "the values file names no Redis"),
        ("redis: {bundled: {enabled: true}}", ""),
        ("redis: {url: 'http://redis:6379'}", "redis.url of the values file: this is not a URL of"),
        ("redis: {url: 'redis://:secret@redis:6379'}", ""),
    ],
)
def test_the_redis_of_a_values_file_is_named_and_has_a_possible_url(
    values: str, words: str
) -> None:
    findings = found(values=values)
    if not words:
        assert findings == {}
        return
    finding = only(findings, Check.REDIS)
    assert (finding.level, finding.message.startswith(words)) == (Level.PROBLEM, True)


def test_redis_address_of_a_values_file_is_reported_as_untested() -> None:
    seen = look(cluster(), "redis: {url: 'redis://user:secret@redis:6379/0'}")
    told = [each.message for each in run_checks(seen, HOME, NOW)]
    assert "the values file names redis:6379; --redis-url tests an address." in told
    assert "Fairgate is not installed; the settings of the values file are judged." in told


def test_a_secret_must_have_the_keys_that_the_chart_reads() -> None:
    objects = [
        secret("url-of-redis", "password"),
        secret("certificate", "tls.crt", "tls.key", "ca.crt"),
        secret("registry"),
        made("PriorityClass", "x", "gpu-platform", value=1),
    ]
    finding = only(found(*objects, values=NAMING), Check.COMPONENTS)
    assert finding.message == (
        f"Secret url-of-redis in namespace {HOME} lacks url, which redis.existingSecret needs."
    )
    objects[0] = secret("url-of-redis", "url")
    assert found(*objects, values=NAMING) == {}


def test_a_caller_that_may_not_read_secrets_gets_a_warning() -> None:
    values = "redis: {existingSecret: url-of-redis}"
    finding = only(found(values=values, forbidden=["/secrets/url-of-redis"]), Check.RIGHTS)
    assert finding.level is Level.WARNING
    assert finding.message.startswith("the caller may not get secrets")


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "podTemplates: [{group: x}]",
        "a: [",
        "devices: [1]",
        "schedulers: {names: []}",
        'devices: {paths: "["}',
        "redis: [url]",
        "redis: {existingSecret: [url]}",
        "redis: {existingSecret: url, secretKey: 5}",
        "redis: {existingSecret: ..}",
        "redis: {existingSecret: ../configmaps/other}",
        "imagePullSecrets: [registry]",
        "managedResources: [5]",
    ],
)
def test_a_wrong_values_file_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="values file cannot be read"):
        planned_settings(text)
