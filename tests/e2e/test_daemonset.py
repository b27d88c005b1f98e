"""Each pod of a DaemonSet is checked against its own node, which the DaemonSet controller sets."""

from __future__ import annotations

from tests.support.cluster_driver import Object, Stage, name_of, pod, template, until

FULL = "gpu-node-3"


def daemon_set(name: str) -> Object:
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template(1, policy="Always")}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name}, "spec": spec}


def own_node(item: Object) -> str:
    """Return the node that the DaemonSet controller set for a pod."""
    required = item["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def test_daemonset_pod_waits_for_its_own_node_if_others_are_free(stage: Stage) -> None:
    wall, agents = stage.namespace("wall"), stage.namespace("agents")
    stage.apply(wall, pod("full", 8, nodeSelector={"kubernetes.io/hostname": FULL}))
    until("one node is full", lambda: stage.running(wall) == ["full"])

    stage.apply(agents, daemon_set("agent"))
    until("the others run", lambda: len(stage.running(agents)) == 7)
    [held] = [item for item in stage.pods(agents) if name_of(item) in stage.held(agents)]
    assert own_node(held) == FULL
    # 49 GPUs are free elsewhere. Other pods may use them at once, and this pod continues to wait.
    stage.apply(wall, pod("after", 1))
    until("a later pod runs", lambda: len(stage.running(wall)) == 2)
    assert stage.held(agents) == [name_of(held)]
    until("its owner is told where it waits", lambda: f"on node {FULL} of" in told(stage, held))

    stage.delete(wall, "full")
    until("all of them run", lambda: len(stage.running(agents)) == 8)
    assert {item["spec"]["nodeName"] for item in stage.pods(agents)} == {
        f"gpu-node-{number}" for number in range(8)
    }


def told(stage: Stage, item: Object) -> str:
    """Return the event messages of a pod."""
    field = f"involvedObject.uid={item['metadata']['uid']}"
    namespace = item["metadata"]["namespace"]
    events = stage.get("events", "-n", namespace, "--field-selector", field)["items"]
    return "\n".join(str(event["message"]) for event in events)
