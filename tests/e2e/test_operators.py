"""The examples of docs/workloads.md on a real API server, with the CRDs of the operators' projects.

A user with ordinary rights creates each example. The test then creates the pods and other objects
of the operator, under the operator's account, which is not in `controllerUsers`. Only the
controllers of Kubernetes itself run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.admission.pod_templates import find_templates, group_by_resource
from app.core.admission.workload_kinds import BUILT_IN, WORKLOAD_KINDS, WorkloadKind
from app.core.errors import ClusterError, ClusterRefused
from app.devcluster import state_dir as folders
from app.devcluster.api_client import SetupClient
from app.devcluster.cluster import LocalCluster
from app.devcluster.cluster_options import ClusterOptions
from app.devcluster.go_build import SOURCE
from tests.support.cluster_driver import GATE, GPU, Object, Stage, gates, name_of, pod, until
from tests.support.custom_kinds import custom
from tests.support.operator_crds import read_crd, required_crd_files
from tests.support.personas import Person

EXAMPLES = SOURCE / "docs" / "examples" / "workloads"
SUBMITTER = "fairgate.io/submitter"
KINDS = {kind.kind: kind for kind in WORKLOAD_KINDS}
OPERATORS = sorted({each for kind in WORKLOAD_KINDS for each in kind.operators})
CRON = "system:serviceaccount:kube-system:cronjob-controller"
UNKNOWN = "system:serviceaccount:acme-system:acme-operator"

EDITED = [
    {"apiGroups": sorted({k.group for k in WORKLOAD_KINDS}), "resources": ["*"], "verbs": ["*"]}
]
CREATED = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["create"]}]


def template_of(item: Object, path: str) -> Any:
    for key in path.split("."):
        item = item[key]
    return item


def gpu_pods(item: Object) -> list[Object]:
    """Return a pod for each template in an object that requests GPUs."""
    kind = KINDS[item["kind"]]
    places = group_by_resource(BUILT_IN)[kind.group, kind.resource]
    templates = [each.content for each in find_templates(places, item)]
    return [built("Pod", "v1", t["spec"], t.get("metadata")) for t in templates if GPU in str(t)]


def built(kind: str, version: str, spec: Object, metadata: Object | None = None) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": dict(metadata or {}), "spec": spec}


def jobs_of_set(item: Object) -> list[Object]:
    replicated = item["spec"]["replicatedJobs"]
    return [built("Job", "batch/v1", each["template"]["spec"]) for each in replicated]


def set_of_train_job(item: Object) -> list[Object]:
    """Return the JobSet of a runtime with one replicated job."""
    trainer = item["spec"]["trainer"]
    resources = trainer["resourcesPerNode"]
    container = {"name": "node", "image": trainer["image"], "resources": resources}
    template = {
        "metadata": item["spec"]["podTemplateOverrides"][0]["metadata"],
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    job = {"parallelism": 2, "completions": 2, "template": template}
    spec = {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]}
    return [built("JobSet", "jobset.x-k8s.io/v1alpha2", spec)]


def set_of_pods(template: Object) -> list[Object]:
    labels = {"app": "of-operator"}
    metadata = {**template.get("metadata", {}), "labels": labels}
    spec = {
        "serviceName": "x",
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": template["spec"]},
    }
    return [built("StatefulSet", "apps/v1", spec)]


def annotated_pod(annotations: Object) -> list[Object]:
    """Return a pod of an operator that copies only the annotations to it."""
    return [built("Pod", "v1", pod("x")["spec"], {"annotations": annotations})]


CHILDREN: dict[str, Callable[[Object], list[Object]]] = {
    "CronJob": lambda i: [built("Job", "batch/v1", i["spec"]["jobTemplate"]["spec"])],
    "JobSet": jobs_of_set,
    "TrainJob": set_of_train_job,
    "RayJob": lambda i: [built("RayCluster", "ray.io/v1", i["spec"]["rayClusterSpec"])],
    "RayService": lambda i: [built("RayCluster", "ray.io/v1", i["spec"]["rayClusterConfig"])],
    "LeaderWorkerSet": lambda i: set_of_pods(i["spec"]["leaderWorkerTemplate"]["workerTemplate"]),
    "Notebook": lambda i: set_of_pods(i["spec"]["template"]),
    "Workflow": lambda i: annotated_pod(i["spec"]["podMetadata"]["annotations"]),
    "SparkApplication": lambda i: annotated_pod(i["spec"]["driver"]["annotations"]),
    **dict.fromkeys(("Job", "Deployment", "StatefulSet"), lambda i: []),
}
"""The objects that the operator of a kind creates. Other kinds: pods of all templates."""


@dataclass(frozen=True)
class Example:
    """A file in docs/examples/workloads, and the CRDs that it and its children need."""

    file: str
    crds: tuple[str, ...] = ()
    operator: int = 0

    @property
    def item(self) -> Object:
        found: Object = yaml.safe_load((EXAMPLES / f"{self.file}.yaml").read_text())
        return found

    @property
    def kind(self) -> WorkloadKind:
        return KINDS[self.item["kind"]]


CASES = [
    Example("job"),
    Example("cronjob"),
    Example("deployment"),
    Example("statefulset"),
    Example("jobset", ("jobsets",)),
    Example("trainjob", ("trainjobs", "jobsets")),
    *(Example(f"{k}job", (f"{k}jobs",)) for k in ("pytorch", "tf", "xgboost", "paddle", "jax")),
    Example("mpijob-v1", ("mpijobs",)),
    Example("raycluster", ("rayclusters",)),
    Example("rayjob", ("rayjobs", "rayclusters")),
    Example("rayservice", ("rayservices", "rayclusters")),
    Example("leaderworkerset", ("leaderworkersets",)),
    Example("workflow", ("workflows",)),
    Example("sparkapplication", ("sparkapplications",)),
    Example("notebook", ("notebooks",)),
    Example("mpijob", ("mpijobs v2beta1",), operator=1),
]


@dataclass
class Crds:
    """The CRDs of operators in a cluster."""

    cluster: LocalCluster
    files: dict[str, Path]
    installed: set[str] = field(default_factory=set)

    def install(self, stage: Stage, wanted: str) -> None:
        """Install a CRD. Go's proxy does not offer the module of Notebook: it gets a simple CRD."""
        resource, _, version = wanted.partition(" ")
        if wanted in self.installed:
            return
        simple = custom("kubeflow.org", "v1", "Notebook", "notebooks")
        item = read_crd(self.files[wanted]) if wanted in self.files else simple
        if version:  # two projects have a CRD of this name
            self.cluster.kubectl("delete", "crd", name_of(item), "--ignore-not-found")
            self.installed.discard(resource)
        [kind] = [each for each in WORKLOAD_KINDS if each.resource == resource]
        path = f"/apis/{kind.group}/{version or kind.versions[0]}/{resource}"
        with stage.api() as api:
            api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", item)
            self.installed.add(wanted)
            until("the kind is served", lambda: is_served(api, path))


def is_served(api: SetupClient, path: str) -> bool:
    try:
        return api.find(path) is not None
    except ClusterRefused as error:  # 429: the API server prepares the storage of the kind
        if error.status != 429:
            raise
        return False


@pytest.fixture(scope="module")
def crds(cluster_tools: object) -> Iterator[Crds]:
    """A cluster for this file, because the removal of all these CRDs takes longer."""
    files = required_crd_files()
    cluster = LocalCluster(folders.own_folder("operators"))
    try:
        cluster.up(ClusterOptions(nodes=2, fairgate=False))
        for role in ("webhook", "controller"):
            cluster.start_fairgate(role)
        _grant(cluster)
        yield Crds(cluster, files)
    finally:
        cluster.down()


def _grant(cluster: LocalCluster) -> None:
    """Create a role for users and one for operators."""
    api, names = "rbac.authorization.k8s.io/v1", ("operator-users", "operators")
    group = "rbac.authorization.k8s.io"
    users = [{"apiGroup": group, "kind": "User", "name": n} for n in (*OPERATORS, UNKNOWN)]
    Stage(cluster).apply(
        "default",
        *(
            {"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": n}, "rules": rules}
            for n, rules in zip(names, (EDITED, CREATED), strict=True)
        ),
        {
            "apiVersion": api,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "operators"},
            "subjects": users,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "operators"},
        },
    )


@pytest.fixture
def yard(crds: Crds, tmp_path: Path) -> Iterator[Stage]:
    """A cluster with Fairgate."""
    stage = Stage(crds.cluster, folder=tmp_path)
    yield stage
    for namespace in stage.namespaces:
        stage.cluster.kubectl("delete", "sts,cronjob", "-n", namespace, "--all", "--wait=false")
    stage.clear()


def held_namespace(stage: Stage, name: str) -> str:
    """Return a namespace in which every GPU pod stays held."""
    namespace = stage.namespace(f"op-{name}")
    stage.tenant(f"op-{name}", "1", namespace, paused=True)
    return namespace


def submit(stage: Stage, namespace: str, example: Example) -> Object:
    """Create an example as alice, with rights in her namespace only; return the stored object."""
    alice = stage.as_user("alice", namespace)
    bind = ("create", "rolebinding", "kinds", "-n", namespace, "--clusterrole=operator-users")
    stage.cluster.kubectl(*bind, "--user=alice")
    item, kind = example.item, example.kind
    root = f"/apis/{item['apiVersion']}/namespaces/{namespace}/{kind.resource}"
    person = Person(alice.kubeconfig)
    right = ("create", kind.group, kind.resource, namespace)
    until("alice may create it", lambda: person.may(*right))
    # kubectl could not validate a kind before its schema is published.
    made: Object = person.call("POST", f"{root}?fieldValidation=Strict", item)
    return made


def create_as(stage: Stage, namespace: str, who: str, owner: Object, child: Object) -> Object:
    """Create an object with an owner under the account of a controller."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    child["metadata"] |= {
        "generateName": f"{name_of(owner)}-",
        "ownerReferences": [{**reference, "controller": True}],
    }
    args = ("create", "--validate=false", "-n", namespace, f"--as={who}", "-f", "-", "-o", "json")
    made: Object = json.loads(stage.cluster.kubectl(*args, stdin=json.dumps(child)))
    return made


def play_operators(stage: Stage, namespace: str, item: Object, operator: int = 0) -> None:
    """Create everything that operators would create from an object."""
    kind = KINDS[item["kind"]]
    who = kind.operators[operator] if kind.operators else CRON
    for child in CHILDREN.get(kind.kind, gpu_pods)(item):
        made = create_as(stage, namespace, who, item, child)
        if made["kind"] in ("JobSet", "RayCluster"):
            play_operators(stage, namespace, made)


def asks(item: Object) -> bool:
    return any(GPU in c.get("resources", {}).get("limits", {}) for c in item["spec"]["containers"])


@pytest.mark.parametrize("example", CASES, ids=lambda example: str(example.file))
def test_pods_of_an_example_are_held_and_count_for_its_user(
    crds: Crds, yard: Stage, example: Example
) -> None:
    for name in example.crds:
        crds.install(yard, name)
    namespace = held_namespace(yard, example.file)

    stored = submit(yard, namespace, example)
    play_operators(yard, namespace, stored, example.operator)

    kind = example.kind
    places = group_by_resource(BUILT_IN)[kind.group, kind.resource]
    found = find_templates(places, stored)
    assert found
    assert [each.stamp for each in found] == ["alice"] * len(found)
    until("its pods exist", lambda: any(asks(each) for each in yard.pods(namespace)))
    made = [each for each in yard.pods(namespace) if asks(each)]
    for each in made:
        assert gates(each) == [GATE]
        assert each["metadata"]["annotations"][SUBMITTER] == "alice"
        assert each["metadata"]["labels"]["fairgate.io/user"] == "alice"


def test_every_example_is_tested() -> None:
    assert sorted(each.file for each in CASES) == sorted(p.stem for p in EXAMPLES.glob("*.yaml"))


def test_pod_of_an_unknown_kind_is_charged_to_its_controller(yard: Stage) -> None:
    namespace = held_namespace(yard, "unknown")
    yard.apply(namespace, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "acme"}})
    owner = yard.get("configmap", "acme", "-n", namespace)
    before = yard.metric("webhook", "fairgate_owner_lookups_total", 'result="none"')

    made = create_as(yard, namespace, UNKNOWN, owner, pod("x"))

    assert made["metadata"]["annotations"][SUBMITTER] == UNKNOWN
    assert yard.metric("webhook", "fairgate_owner_lookups_total", 'result="none"') > before
    until("an event says so", lambda: "its submitter is not known" in told(yard, namespace))


def told(stage: Stage, namespace: str) -> str:
    events = stage.get("events", "-n", namespace)["items"]
    return " ".join(str(event["message"]) for event in events)


def test_a_tenant_cannot_name_the_object_of_a_colleague_as_owner(yard: Stage) -> None:
    namespace = held_namespace(yard, "colleague")
    job = submit(yard, namespace, Example("job"))
    bob = yard.as_user("bob", namespace)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
    item = pod("mine")
    item["metadata"] |= {
        "annotations": {SUBMITTER: "alice"},
        "ownerReferences": [{**reference, "uid": job["metadata"]["uid"]}],
    }

    bob.run("create", "-n", namespace, "-f", "-", stdin=json.dumps(item))

    mine = yard.get("pod", "mine", "-n", namespace)
    assert mine["metadata"]["annotations"][SUBMITTER] == "bob"


def test_the_policies_alone_let_no_tenant_name_an_owner(yard: Stage) -> None:
    """The mutating webhook overwrites such a stamp on a new object; a change of it is refused."""
    namespace = held_namespace(yard, "changed")
    submit(yard, namespace, Example("deployment"))
    bob = yard.as_user("bob", namespace)
    patch = {"spec": {"template": {"metadata": {"annotations": {SUBMITTER: "bob"}}}}}
    with pytest.raises(ClusterError, match="only Fairgate sets the annotation"):
        bob.run("patch", "deployment", "chat", "-n", namespace, "-p", json.dumps(patch))
