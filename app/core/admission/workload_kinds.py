"""The kinds of objects with pod templates that Fairgate knows without configuration.

The chart's `podTemplates` has the same paths; a test compares both. `docs/workloads.md` has an
example of each kind that users create.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.admission.pod_templates import TemplateKind

TRAINING_OPERATOR = ("system:serviceaccount:kubeflow:training-operator",)
KUBERAY = ("system:serviceaccount:default:kuberay-operator",)


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """A kind of object from which a controller creates pods, directly or by other objects.

    `versions` are those whose CRDs the tests use. `paths` are as in `TemplateKind`. `operators` are
    the user names of its controller in the project's own installation, empty for controllers of
    Kubernetes.
    """

    kind: str
    group: str
    versions: tuple[str, ...]
    paths: tuple[str, ...]
    operators: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """The name in URLs. All known kinds have a regular plural."""
        return plural_of(self.kind)


def plural_of(kind: str) -> str:
    """Return the regular plural of a kind, as in URLs."""
    return f"{kind.lower()}s"


def _training(kind: str, replicas: str) -> WorkloadKind:
    path = f"spec.{replicas}{{*}}.template"
    return WorkloadKind(kind, "kubeflow.org", ("v1",), (path,), TRAINING_OPERATOR)


def _ray(kind: str, cluster: str, *more: str) -> WorkloadKind:
    paths = (f"{cluster}.headGroupSpec.template", f"{cluster}.workerGroupSpecs[*].template")
    return WorkloadKind(kind, "ray.io", ("v1", "v1alpha1"), (*paths, *more), KUBERAY)


WORKLOAD_KINDS = (
    WorkloadKind("Job", "batch", ("v1",), ("spec.template",)),
    WorkloadKind("CronJob", "batch", ("v1",), ("spec.jobTemplate.spec.template",)),
    WorkloadKind("Deployment", "apps", ("v1",), ("spec.template",)),
    WorkloadKind("ReplicaSet", "apps", ("v1",), ("spec.template",)),
    WorkloadKind("StatefulSet", "apps", ("v1",), ("spec.template",)),
    WorkloadKind("DaemonSet", "apps", ("v1",), ("spec.template",)),
    WorkloadKind("ControllerRevision", "apps", ("v1",), ("data.spec.template",)),
    WorkloadKind("ReplicationController", "", ("v1",), ("spec.template",)),
    WorkloadKind(
        "JobSet",
        "jobset.x-k8s.io",
        ("v1alpha2",),
        ("spec.replicatedJobs[*].template.spec.template",),
        ("system:serviceaccount:jobset-system:jobset-controller-manager",),
    ),
    WorkloadKind(
        "TrainJob",
        "trainer.kubeflow.org",
        ("v1alpha1",),
        # The pod templates are in the runtime that it names. The JobSet gets these annotations.
        ("spec.annotations",),
        ("system:serviceaccount:kubeflow-system:kubeflow-trainer-controller-manager",),
    ),
    _training("PyTorchJob", "pytorchReplicaSpecs"),
    _training("TFJob", "tfReplicaSpecs"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    WorkloadKind(
        "MPIJob",
        "kubeflow.org",
        ("v1", "v2beta1"),
        ("spec.mpiReplicaSpecs{*}.template",),
        (*TRAINING_OPERATOR, "system:serviceaccount:mpi-operator:mpi-operator"),
    ),
    _ray("RayCluster", "spec"),
    _ray("RayJob", "spec.rayClusterSpec", "spec.submitterPodTemplate"),
    _ray("RayService", "spec.rayClusterConfig"),
    WorkloadKind(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        ("v1",),
        ("spec.leaderWorkerTemplate.leaderTemplate", "spec.leaderWorkerTemplate.workerTemplate"),
        ("system:serviceaccount:lws-system:lws-controller-manager",),
    ),
    WorkloadKind(
        "Workflow",
        "argoproj.io",
        ("v1alpha1",),
        ("spec.podMetadata.annotations",),
        ("system:serviceaccount:argo:argo",),
    ),
    WorkloadKind(
        "CronWorkflow",
        "argoproj.io",
        ("v1alpha1",),
        ("spec.workflowSpec.podMetadata.annotations",),
        ("system:serviceaccount:argo:argo",),
    ),
    WorkloadKind(
        "SparkApplication",
        "sparkoperator.k8s.io",
        ("v1beta2",),
        ("spec.driver.annotations", "spec.executor.annotations"),
        ("system:serviceaccount:spark-operator:spark-operator-controller",),
    ),
    WorkloadKind(
        "ScheduledSparkApplication",
        "sparkoperator.k8s.io",
        ("v1beta2",),
        ("spec.template.driver.annotations", "spec.template.executor.annotations"),
        ("system:serviceaccount:spark-operator:spark-operator-controller",),
    ),
    WorkloadKind(
        "Notebook",
        "kubeflow.org",
        ("v1",),
        # Its template has no metadata; the controller copies the annotations of the Notebook.
        ("metadata.annotations",),
        ("system:serviceaccount:kubeflow:notebook-controller-service-account",),
    ),
)

BUILT_IN = tuple(
    TemplateKind(each.group, each.resource, path) for each in WORKLOAD_KINDS for path in each.paths
)
"""The templates of all known kinds."""
