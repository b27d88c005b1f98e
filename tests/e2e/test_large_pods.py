"""The largest pods that Fairgate accepts do not delay other pods.

The test prints the time of the first release if run with `-s`.
"""

from __future__ import annotations

import time

from tests.e2e.attacks.large_pods import WITHIN, large
from tests.support.cluster_driver import Stage, pod, until
from tests.support.personas import Person

COUNT = 20


def first_release(stage: Stage, namespace: str, name: str) -> float:
    """Create a pod of one GPU; return the seconds until it is released."""
    begun = time.monotonic()
    stage.apply(namespace, pod(name, 1))
    until(f"{name} is released", lambda: name not in stage.held(namespace), 300)
    return time.monotonic() - begun


def test_largest_accepted_pods_do_not_block_other_pods(stage: Stage) -> None:
    cluster, admin = stage.cluster, Person(stage.cluster.kubeconfig)
    many, other = stage.namespace("many"), stage.namespace("other")
    print(f"\nwithout large pods: {first_release(stage, other, 'plain'):.1f} s")
    for field, built in WITHIN.items():
        for number in range(COUNT):
            made = large(f"large-{number}", built)
            admin.call("POST", f"/api/v1/namespaces/{many}/pods", made)
        name = f"quick-{field}".replace("_", "-")
        print(f"{COUNT} pods, {field}: {first_release(stage, other, name):.1f} s")
        cluster.kubectl("delete", "pod", "-n", other, name, "--wait=false")
        cluster.kubectl("delete", "pods", "--all", "-n", many, "--wait=false")
