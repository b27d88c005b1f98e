"""Takes layers of enforcement away, so that one can be seen to hold alone."""

from __future__ import annotations

import json

import yaml

from app.dev.cluster import Cluster
from app.dev.fairgate import NAMESPACE

HOLDING = "MutatingWebhookConfiguration"
VALIDATING = "ValidatingWebhookConfiguration"
POLICIES = "ValidatingAdmissionPolicyBinding"
MAP = ("configmap", "fairgate-enforcement", "-n", NAMESPACE)


def keep_only(cluster: Cluster, *kinds: str) -> None:
    """Delete what enforces, but objects of these kinds, and tell the watchdog that it is meant."""
    written = json.loads(cluster.kubectl("get", *MAP, "-o", "json"))["data"]
    documents = [each for text in written.values() for each in yaml.safe_load_all(text) if each]
    kept = [each for each in documents if each["kind"] in (*kinds, "ValidatingAdmissionPolicy")]
    data = dict.fromkeys(written, "") | {"kept.yaml": yaml.safe_dump_all(kept)}
    cluster.kubectl("patch", *MAP, "--type=merge", "-p", json.dumps({"data": data}))
    for each in documents:
        if each not in kept:
            cluster.kubectl("delete", each["kind"], each["metadata"]["name"])
