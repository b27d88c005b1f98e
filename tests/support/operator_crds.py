"""CRDs of other projects, from their Go modules. No CRD is copied into this repository.

The modules come from Go's module cache, or from its proxy the first time. A module with other
contents than here is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.errors import ToolMissing
from tests.support.cluster_driver import Object

SKIPPED = "no CRDs of other projects on this machine"


@dataclass(frozen=True, slots=True)
class GoModule:
    """A version of a Go module, and the hash of its contents as in a go.sum file."""

    path: str
    version: str
    checksum: str


JOBSET = GoModule(
    "sigs.k8s.io/jobset", "v0.10.1", "h1:u8QKifNsrWVrlRFe6w2ofYTqFT9ma2DRHxfeB2m9xyU="
)
LWS = GoModule("sigs.k8s.io/lws", "v0.7.0", "h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=")
TRAINING = GoModule(
    "github.com/kubeflow/training-operator",
    "v1.9.3",
    "h1:aaSHqskOtCY8Dn8sVd+l9p5XAczW6O0nYMPjVLAw/lc=",
)
TRAINER = GoModule(
    "github.com/kubeflow/trainer/v2", "v2.1.0", "h1:jRABD9ZYToamNH2atHze3L/VC/v6KCAqUEqsOQOjVTg="
)
MPI = GoModule(
    "github.com/kubeflow/mpi-operator", "v0.7.0", "h1:ID1eyzAFOMofgynEvfy4//S3q7Ra1OSexrggb1VcC1o="
)
RAY = GoModule(
    "github.com/ray-project/kuberay/ray-operator",
    "v1.5.1",
    "h1:7FJYmB8oM+cnjv1VYCj/TfzRZG4XHvvt5Ayn5pZ5A1c=",
)
ARGO = GoModule(
    "github.com/argoproj/argo-workflows/v3",
    "v3.7.2",
    "h1:Fi6j0q2sCg6cfkntKde5KA+TfJgMrq1MzJCmOESlWNw=",
)
SPARK = GoModule(
    "github.com/kubeflow/spark-operator/v2",
    "v2.3.0",
    "h1:cYN/331gwkdZ0S/ai72JQoUv7UK52O2OQOWFpl8XhPc=",
)
GATEWAY = GoModule(
    "sigs.k8s.io/gateway-api", "v1.4.1", "h1:NPxFutNkKNa8UfLd2CMlEuhIPMQgDQ6DXNKG9sHbJU8="
)
PROMETHEUS = GoModule(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
CERT_MANAGER = GoModule(
    "github.com/cert-manager/cert-manager",
    "v1.19.1",
    "h1:Txh8L/nLWTDcb7ZnXuXbTe15BxQnLbLirXmbNk0fGgY=",
)

CrdFiles = Mapping[str, tuple[GoModule, str]]
"""The file of each CRD in its module."""

CRDS: CrdFiles = {
    "jobsets": (JOBSET, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    "leaderworkersets": (
        LWS,
        "config/crd/bases/leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    ),
    **{
        kind: (TRAINING, f"manifests/base/crds/kubeflow.org_{kind}.yaml")
        for kind in ("pytorchjobs", "tfjobs", "xgboostjobs", "paddlejobs", "jaxjobs", "mpijobs")
    },
    "mpijobs v2beta1": (MPI, "manifests/base/kubeflow.org_mpijobs.yaml"),
    "trainjobs": (TRAINER, "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml"),
    **{
        kind: (RAY, f"config/crd/bases/ray.io_{kind}.yaml")
        for kind in ("rayclusters", "rayjobs", "rayservices")
    },
    "workflows": (ARGO, "manifests/base/crds/minimal/argoproj.io_workflows.yaml"),
    "sparkapplications": (
        SPARK,
        "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml",
    ),
}
"""The kinds of operators that create pods."""

CHART_CRDS: CrdFiles = {
    **{
        kind: (GATEWAY, f"config/crd/standard/gateway.networking.k8s.io_{kind}.yaml")
        for kind in ("httproutes", "backendtlspolicies")
    },
    **{
        kind: (PROMETHEUS, f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml")
        for kind in ("podmonitors", "servicemonitors", "prometheusrules")
    },
    "certificates": (CERT_MANAGER, "deploy/crds/cert-manager.io_certificates.yaml"),
}
"""Kinds of objects that the chart may create."""


def crd_files(crds: CrdFiles = CRDS) -> dict[str, Path]:
    """Return the file of each CRD. Raises ToolMissing if Go or a module is missing."""
    go = shutil.which("go")
    if go is None:
        raise ToolMissing("there is no Go to fetch them with; install Go 1.26 or newer (go.dev/dl)")
    modules = {module for module, _ in crds.values()}
    folders = {module: _folder(go, module) for module in modules}
    return {name: folders[module] / path for name, (module, path) in crds.items()}


def required_crd_files(crds: CrdFiles = CRDS) -> dict[str, Path]:
    """Return the files of `crd_files`. If missing, skip, or fail with REQUIRE_CLUSTER=1."""
    try:
        return crd_files(crds)
    except ToolMissing as error:
        if os.environ.get("REQUIRE_CLUSTER", "") not in ("", "0"):
            pytest.fail(f"The CRDs of other projects are required: {error}.", pytrace=False)
        pytest.skip(f"{SKIPPED}: {error}.")


def read_crd(path: Path) -> Object:
    """Return a CRD without its descriptions, which slow the API server down."""
    document: Object = yaml.load(path.read_bytes(), yaml.CSafeLoader)
    for version in document["spec"]["versions"]:
        _drop_descriptions(version["schema"]["openAPIV3Schema"])
    return document


def _drop_descriptions(schema: Any) -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            del schema["description"]
        for each in schema.values():
            _drop_descriptions(each)
    elif isinstance(schema, list):
        for each in schema:
            _drop_descriptions(each)


def _folder(go: str, module: GoModule) -> Path:
    done = subprocess.run(
        [go, "mod", "download", "-json", f"{module.path}@{module.version}"],
        cwd="/",  # outside any module
        env={**os.environ, "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"Error": done.stderr.strip()}
    if "Dir" not in answer:
        raise ToolMissing(f"{module.path} {module.version} cannot be fetched: {answer['Error']}")
    if answer["Sum"] != module.checksum:
        raise ToolMissing(f"{module.path} {module.version} has other contents than it had")
    return Path(answer["Dir"])
