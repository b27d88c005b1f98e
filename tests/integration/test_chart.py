"""What the chart renders, and which pods its webhook configuration selects."""

from __future__ import annotations

import time

import pytest
import yaml

from app import settings
from app.core.errors import ClusterError
from app.core.model import GATE
from app.dev.cluster import Cluster
from app.dev.fairgate import CHART
from tests.chart import ASKED, RESTRICTED, ROLES, Chart, Object, make, of_kind, the_webhook

OUTSIDE = "external.webhookUrl=https://127.0.0.1:9443/admit"
WORKLOADS = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
DRY_RUN = "--dry-run=server"


def test_lint_finds_no_fault(chart: Chart) -> None:
    done = chart.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_inside_the_cluster_the_webhook_is_a_service_with_replicas(chart: Chart) -> None:
    documents = chart.render("networkPolicy.enabled=true")
    assert {each["kind"] for each in documents} >= WORKLOADS
    assert the_webhook(documents)["clientConfig"] == {
        "service": {
            "name": "fairgate-webhook",
            "namespace": "fairgate-system",
            "path": "/admit",
            "port": 443,
        }
    }
    names = {f"fairgate-{role}" for role in ROLES}
    assert set(of_kind(documents, "Deployment")) == names
    assert set(of_kind(documents, "PodDisruptionBudget")) == names
    assert of_kind(documents, "Deployment")["fairgate-webhook"]["spec"]["replicas"] == 2


def test_outside_the_cluster_the_webhook_is_a_url_and_nothing_runs(chart: Chart) -> None:
    inside, outside = chart.render(), chart.render(OUTSIDE, "networkPolicy.enabled=true")
    assert the_webhook(outside)["clientConfig"] == {"url": "https://127.0.0.1:9443/admit"}
    rest = [each for each in inside if each["kind"] not in WORKLOADS]
    for documents in (rest, outside):
        the_webhook(documents).pop("clientConfig")
    assert rest == outside


def test_webhook_fails_closed_and_selects_namespaces_by_name_only(chart: Chart) -> None:
    webhook = the_webhook(chart.render())
    assert "caBundle" not in webhook["clientConfig"]
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "None"
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["timeoutSeconds"] == 5
    assert "objectSelector" not in webhook
    [rule] = webhook["namespaceSelector"]["matchExpressions"]
    assert rule["key"] == "kubernetes.io/metadata.name"
    assert rule["operator"] == "NotIn"
    assert tuple(rule["values"]) == settings.EXEMPT


@pytest.mark.parametrize("role", ROLES)
def test_programs_understand_what_the_chart_tells_them(chart: Chart, role: str) -> None:
    pod = of_kind(chart.render(), "Deployment")[f"fairgate-{role}"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    assert set(environment) <= {field.variable for field in settings.FIELDS}
    told = settings.load(environment)
    assert told.roles == (role,)
    assert told.managed_resources == settings.MANAGED
    assert told.exempt_namespaces == settings.EXEMPT
    assert "fairgate-webhook.fairgate-system.svc" in told.tls_names
    assert pod["terminationGracePeriodSeconds"] > told.drain_seconds


def test_managed_resources_make_the_match_conditions(chart: Chart) -> None:
    documents = chart.render("managedResources={example.com/tpu,example.com/slice-*}")
    [condition] = the_webhook(documents)["matchConditions"]
    assert "r == 'example.com/tpu' || r.startsWith('example.com/slice-')" in condition["expression"]
    assert "nvidia" not in condition["expression"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("managedResources={nvidia.com/gpu' || true || '}", "managedResources"),
        ("managedResources={*}", "managedResources"),
        ("managedResources=null", "managedResources"),
        ("exemptNamespaces={kube_system}", "exemptNamespaces"),
        ("external.webhookUrl=http://127.0.0.1/admit", "webhookUrl"),
        ("redis.url=http://redis:6379", "redis"),
        ("webhook.timeoutSeconds=60", "timeoutSeconds"),
        ("webhook.replica=3", "replica"),
        ("logLevel=loud", "logLevel"),
    ],
)
def test_wrong_value_is_refused_by_name(chart: Chart, value: str, words: str) -> None:
    done = chart.template(value)
    assert done.returncode
    assert words in done.stderr


@pytest.mark.parametrize("flags", [(), ("--kube-version=1.30",)], ids=["newest", "old"])
def test_api_server_takes_everything_rendered(
    installed: Cluster, chart: Chart, flags: tuple[str, ...]
) -> None:
    documents = chart.render("networkPolicy.enabled=true", *flags)
    apply = ("apply", "--server-side", "--force-conflicts", DRY_RUN, "-f", "-")
    said = installed.kubectl(*apply, stdin=yaml.safe_dump_all(documents))
    assert len(said.splitlines()) == len(documents)


@pytest.mark.parametrize("role", ROLES)
def test_pods_of_fairgate_pass_the_restricted_standard(
    installed: Cluster, chart: Chart, role: str
) -> None:
    deployment = of_kind(chart.render(), "Deployment")[f"fairgate-{role}"]
    spec = {**deployment["spec"]["template"]["spec"], "serviceAccountName": "own"}
    make(installed, "v1", "Pod", "like", {"spec": spec}, "-n", RESTRICTED, DRY_RUN)


# --- which pods the webhook is asked about ---


def container(name: str = "main", **resources: Object) -> Object:
    return {"name": name, "image": "none", "resources": resources}


GPU = {"nvidia.com/gpu": "1"}
BOTH = {"requests": GPU, "limits": GPU}
CPU = container(requests={"cpu": "1", "memory": "1Gi"}, limits={"memory": "2Gi"})
SIDECAR = {**container("side", **BOTH), "restartPolicy": "Always"}

GPU_PODS: dict[str, Object] = {
    "limits alone": {"containers": [container(limits=GPU)]},
    "requests and limits": {"containers": [container(**BOTH)]},
    "requests alone": {"containers": [container(requests=GPU)]},
    "second container": {"containers": [CPU, container("second", **BOTH)]},
    "init container": {"containers": [CPU], "initContainers": [container("init", **BOTH)]},
    "sidecar": {"containers": [CPU], "initContainers": [SIDECAR]},
    "pod level": {"containers": [CPU], "resources": BOTH},
    "overhead": {"containers": [CPU], "runtimeClassName": "chart-gpu"},
    "by prefix": {"containers": [container(limits={"nvidia.com/mig-1g.5gb": "1"})]},
    "odd quantity": {"containers": [container(limits={"nvidia.com/gpu": "1e0"})]},
    "among a thousand": {
        "containers": [{**CPU, "name": f"c{i}"} for i in range(1000)] + [container(**BOTH)]
    },
}

OTHER_PODS: dict[str, Object] = {
    "no resources": {"containers": [{"name": "main", "image": "none"}]},
    "cpu and memory": {"containers": [CPU], "initContainers": [{**CPU, "name": "init"}]},
    "pod level cpu": {"containers": [CPU], "resources": {"requests": {"cpu": "2"}}},
    "a name that only begins alike": {"containers": [container(limits={"nvidia.com/gpux": "1"})]},
}


def is_asked(cluster: Cluster, namespace: str, spec: Object) -> bool:
    """Tell whether the webhook is asked: nobody listens, or it adds the gate."""
    pod = {"spec": {**spec, "serviceAccountName": "own"}}
    try:
        made = make(cluster, "v1", "Pod", "pod", pod, "-n", namespace, DRY_RUN, "--validate=false")
    except ClusterError as error:
        if "hold.fairgate.io" not in str(error):
            raise
        return True
    return {"name": GATE} in made["spec"].get("schedulingGates", ())


@pytest.fixture(scope="module")
def asking(installed: Cluster) -> Cluster:
    """The cluster, once its API server knows the webhook, which it learns a little later."""
    overhead = {"handler": "none", "overhead": {"podFixed": GPU}}
    make(installed, "node.k8s.io/v1", "RuntimeClass", "chart-gpu", overhead)
    deadline = time.monotonic() + 30
    while not is_asked(installed, ASKED, GPU_PODS["requests and limits"]):
        assert time.monotonic() < deadline, "the API server never asks the webhook"
    return installed


@pytest.mark.parametrize("spec", GPU_PODS.values(), ids=GPU_PODS.keys())
def test_webhook_is_asked_about_every_spelling_of_a_gpu_pod(asking: Cluster, spec: Object) -> None:
    assert is_asked(asking, ASKED, spec)


@pytest.mark.parametrize("spec", OTHER_PODS.values(), ids=OTHER_PODS.keys())
def test_other_pods_never_reach_the_webhook(asking: Cluster, spec: Object) -> None:
    assert not is_asked(asking, ASKED, spec)


def test_pod_without_containers_is_told_just_that(asking: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"spec\.containers: Required value"):
        is_asked(asking, ASKED, {"containers": None})


def test_pods_of_exempt_namespaces_never_reach_the_webhook(asking: Cluster) -> None:
    spec = GPU_PODS["requests and limits"]
    asking.kubectl("-n", "kube-public", "create", "serviceaccount", "own")
    assert not is_asked(asking, "kube-public", spec)
