"""Removes layers of enforcement, so that tests can check one layer alone."""

from __future__ import annotations

import json

import yaml

from app.devcluster.cluster import LocalCluster
from app.devcluster.fairgate_install import NAMESPACE
from app.kube.enforcement_spec import MODE, read_documents

HOLDING = "MutatingWebhookConfiguration"
VALIDATING = "ValidatingWebhookConfiguration"
POLICIES = "ValidatingAdmissionPolicyBinding"
MAP = ("configmap", "fairgate-enforcement", "-n", NAMESPACE)


def keep_only(cluster: LocalCluster, *kinds: str) -> None:
    """Delete the enforcing objects except these kinds, and update the watchdog's ConfigMap."""
    written = json.loads(cluster.kubectl("get", *MAP, "-o", "json"))["data"]
    documents = list(read_documents(written).values())
    kept = [each for each in documents if each["kind"] in (*kinds, "ValidatingAdmissionPolicy")]
    rest = {key: "" for key in written if key != MODE}
    data = rest | {"kept.yaml": yaml.safe_dump_all(kept)}
    patch = ("patch", *MAP, "--type=merge", "--patch-file=/dev/stdin")  # too long for an argument
    cluster.kubectl(*patch, stdin=json.dumps({"data": data}))
    for each in documents:
        if each not in kept:
            cluster.kubectl("delete", each["kind"], each["metadata"]["name"])
