"""A real API server accepts the entire chart and calls the webhook for the right pods."""

from __future__ import annotations

import json
import time

import pytest
import yaml

from app.config import settings
from app.core.errors import ClusterError
from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import NAMESPACE
from app.kube.enforcement_spec import CONFIG_MAP, desired_metadata, differences
from tests.support.chart import ASKED, RESTRICTED, ROLES, Chart, Object, enforced, make, of_kind

DRY_RUN = "--dry-run=server"


@pytest.mark.parametrize("flags", [(), ("--kube-version=1.30",)], ids=["newest", "old"])
def test_api_server_takes_everything_rendered(
    installed: LocalCluster, chart: Chart, flags: tuple[str, ...]
) -> None:
    documents = chart.render("networkPolicy.enabled=true", *flags)
    for made in of_kind(documents, "Pod").values():
        # A dry run does not create the account that the API server looks up for a pod.
        made["spec"]["serviceAccountName"] = "default"
    apply = ("apply", "--server-side", "--force-conflicts", DRY_RUN, "-f", "-")
    said = installed.kubectl(*apply, stdin=yaml.safe_dump_all(documents))
    assert len(said.splitlines()) == len(documents)


def test_policies_and_webhooks_state_all_defaults(installed: LocalCluster) -> None:
    """Otherwise a starting webhook process needs a dry run for each, which costs a second."""
    held = installed.kubectl("get", "configmap", CONFIG_MAP, "-n", NAMESPACE, "-o", "json")
    documents = enforced([json.loads(held)])
    assert documents
    for each in documents:
        name = each["metadata"]["name"]
        live = json.loads(installed.kubectl("get", each["kind"], name, "-o", "json"))
        assert differences(live, {**each, "metadata": desired_metadata(each)}) == [], name


@pytest.mark.parametrize("role", ROLES)
def test_pods_of_fairgate_pass_the_restricted_standard(
    installed: LocalCluster, chart: Chart, role: str
) -> None:
    deployment = of_kind(chart.render(), "Deployment")[f"fairgate-{role}"]
    spec = {**deployment["spec"]["template"]["spec"], "serviceAccountName": "own"}
    make(installed, "v1", "Pod", "like", {"spec": spec}, "-n", RESTRICTED, DRY_RUN)


# --- pods for which the webhook is called ---


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
    "overhead": {"containers": [CPU], "runtimeClassName": "chart-gpu"},
    **{
        name: {"containers": [container(limits={name.replace("*", "1g.5gb"): "1"})]}
        for name in settings.MANAGED
    },
    "odd quantity": {"containers": [container(limits={"nvidia.com/gpu": "1e0"})]},
    "among a thousand": {
        "containers": [{**CPU, "name": f"c{i}"} for i in range(1000)] + [container(**BOTH)]
    },
}

IMPOSSIBLE: dict[str, Object] = {
    "pod level": {"containers": [CPU], "resources": BOTH},
}
"""Devices in fields where the API server does not accept devices."""

OTHER_PODS: dict[str, Object] = {
    "no resources": {"containers": [{"name": "main", "image": "none"}]},
    "cpu and memory": {"containers": [CPU], "initContainers": [{**CPU, "name": "init"}]},
    "pod level cpu": {"containers": [CPU], "resources": {"requests": {"cpu": "2"}}},
    "a name that only begins alike": {"containers": [container(limits={"nvidia.com/gpux": "1"})]},
}


def is_asked(cluster: LocalCluster, namespace: str, spec: Object) -> bool:
    """Return whether the webhook is called. No server listens there, so a call fails."""
    pod = {"spec": {**spec, "serviceAccountName": "own"}}
    try:
        make(cluster, "v1", "Pod", "pod", pod, "-n", namespace, DRY_RUN, "--validate=false")
    except ClusterError as error:
        if "hold.fairgate.io" not in str(error):
            raise
        return True
    return False


@pytest.fixture(scope="module")
def asking(installed: LocalCluster) -> LocalCluster:
    """The cluster, after its API server has loaded the webhook configuration."""
    overhead = {"handler": "none", "overhead": {"podFixed": GPU}}
    make(installed, "node.k8s.io/v1", "RuntimeClass", "chart-gpu", overhead)
    deadline = time.monotonic() + 30
    while not is_asked(installed, ASKED, GPU_PODS["requests and limits"]):
        assert time.monotonic() < deadline, "the API server never asks the webhook"
    return installed


@pytest.mark.parametrize("spec", GPU_PODS.values(), ids=GPU_PODS.keys())
def test_webhook_is_called_for_every_form_of_a_gpu_request(
    asking: LocalCluster, spec: Object
) -> None:
    assert is_asked(asking, ASKED, spec)


@pytest.mark.parametrize("spec", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_no_device_is_had_where_the_webhook_does_not_look(
    asking: LocalCluster, spec: Object
) -> None:
    with pytest.raises(ClusterError, match="is invalid"):
        is_asked(asking, ASKED, spec)


@pytest.mark.parametrize("spec", OTHER_PODS.values(), ids=OTHER_PODS.keys())
def test_other_pods_never_reach_the_webhook(asking: LocalCluster, spec: Object) -> None:
    assert not is_asked(asking, ASKED, spec)


def test_pod_without_containers_is_refused_by_the_api_server(asking: LocalCluster) -> None:
    with pytest.raises(ClusterError, match=r"spec\.containers: Required value"):
        is_asked(asking, ASKED, {"containers": None})


@pytest.mark.parametrize("namespace", settings.EXEMPT)
def test_pods_of_exempt_namespaces_never_reach_the_webhook(
    asking: LocalCluster, namespace: str
) -> None:
    present = asking.kubectl("get", "namespaces", "-o", "name").split()
    if f"namespace/{namespace}" not in present:
        asking.kubectl("create", "namespace", namespace)
    asking.kubectl("-n", namespace, "create", "serviceaccount", "own")
    try:
        assert not is_asked(asking, namespace, GPU_PODS["requests and limits"])
    finally:
        asking.kubectl("-n", namespace, "delete", "serviceaccount", "own")
