"""Pods that kube-scheduler would reject are not released: taints, affinity, paused pools.

The tests use nodes of several kinds on a real API server. The real scheduler binds the released
pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from app.core.errors import ClusterError
from tests.support.cluster_driver import (
    GATE,
    GPU,
    NeverTrueError,
    Object,
    Stage,
    gates,
    name_of,
    pod,
    until,
)

NUMBERS = count(1)
ML = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}
BEARS_ML = {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", GPU: "8"}


def node(name: str, *taints: Object, **labels: str) -> Object:
    """Return a node of 8 GPUs that KWOK simulates."""
    known = {"kubernetes.io/hostname": name, "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **labels}},
        "spec": {"taints": list(taints)},
        "status": {"capacity": ROOM, "allocatable": ROOM},
    }


def pool(name: str, **spec: object) -> Object:
    """Return a Pool that selects the nodes of one kind."""
    return {
        "apiVersion": "fairgate.io/v1alpha1",
        "kind": "Pool",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"kind": name}, **spec},
    }


def requires(*expressions: Object) -> Object:
    """Return a pod affinity that requires these node labels."""
    terms = [{"matchExpressions": list(expressions)}]
    required = {"nodeSelectorTerms": terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> Object:
    written: Object = {"key": key, "operator": operator}
    return written | ({"values": list(values)} if values else {})


ZONED = expression("zone", "Exists")


def into(item: Object, *pools: str) -> Object:
    """Return a pod that may use only these pools."""
    item["metadata"]["annotations"] = {"fairgate.io/pools": ",".join(pools)}
    return item


class Site(Stage):
    """A `Stage` with its own nodes and pools."""

    space: str

    def build(self, *objects: Object) -> None:
        """Create nodes and pools that are removed when the test ends."""
        self.objects += [(o["kind"].lower(), name_of(o)) for o in objects]
        self.apply("default", *objects)
        nodes = [name_of(o) for o in objects if o["kind"] == "Node"]
        until("the nodes are ready", lambda: all(map(self.is_ready, nodes)))

    def is_ready(self, name: str) -> bool:
        item = self.get("node", name)
        conditions = item["status"].get("conditions", [])
        taints = item["spec"].get("taints", [])
        settled = not any(t["key"].startswith("node.kubernetes.io/") for t in taints)
        return settled and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def told(self, name: str) -> str:
        """Return the event messages of a pod."""
        field = f"--field-selector=involvedObject.name={name}"
        events = self.get("events", "-n", self.space, field)["items"]
        return "\n".join(str(event["message"]) for event in events)

    def hears(self, name: str, words: str) -> None:
        try:
            until(f"{name} is told: {words}", lambda: words in self.told(name))
        except NeverTrueError as error:
            raise NeverTrueError(f"{error}; it was told: {self.told(name)}") from error

    def where(self) -> dict[str, str]:
        """Return the node of each running pod."""
        items = [p for p in self.pods(self.space) if p["status"].get("phase") == "Running"]
        return {name_of(p): p["spec"]["nodeName"] for p in items}

    def run(self, **expected: str) -> None:
        """Wait until exactly these pods run, each on its node."""
        wanted = {name.replace("_", "-"): where for name, where in expected.items()}
        until(f"run: {wanted}", lambda: self.where() == wanted)

    def condition(self, name: str, kind: str) -> Object:
        conditions = self.get("pool", name).get("status", {}).get("conditions", [])
        found = [c for c in conditions if c["type"] == kind]
        return dict(found[0]) if found else {}

    def says(self, name: str, kind: str, status: str, reason: str) -> None:
        wanted = (status, reason)

        def said() -> bool:
            found = self.condition(name, kind)
            return (found.get("status"), found.get("reason")) == wanted

        until(f"{kind} of pool {name} is {wanted}", said)

    def submit(self, *pods: Object) -> None:
        self.apply(self.space, *pods)


@pytest.fixture
def site(stage: Stage) -> Iterator[Site]:
    """A separate namespace. The nodes of the stage are in no pool."""
    made = Site(stage.cluster, folder=stage.folder)
    try:
        made.space = made.namespace(f"fit-{next(NUMBERS)}")
        yield made
    finally:
        made.objects.reverse()
        made.clear()


def test_a_taint_that_a_pod_does_not_tolerate_holds_it_and_the_pool_may_bear_it_for_all(
    site: Site,
) -> None:
    site.build(node("ml-0", ML, kind="ml"), node("free-0", kind="free"), pool("ml"), pool("free"))
    site.submit(into(pod("stays"), "ml"), pod("goes"), pod("bears", tolerations=[BEARS_ML]))
    site.hears("stays", "it does not tolerate dedicated=ml:NoSchedule")
    until("the others run", lambda: set(site.where()) == {"goes", "bears"})
    assert site.where()["goes"] == "free-0"
    assert site.held(site.space) == ["stays"]

    site.build(pool("ml", tolerations=[BEARS_ML]))
    until("it runs", lambda: site.where().get("stays") == "ml-0")
    released = site.get("pod", "stays", "-n", site.space)
    assert BEARS_ML in released["spec"]["tolerations"]
    bearer = site.get("pod", "bears", "-n", site.space)
    assert [t for t in bearer["spec"]["tolerations"] if t["key"] == "dedicated"] == [BEARS_ML]


def test_added_taint_holds_pods_and_removed_taint_releases_them(site: Site) -> None:
    site.build(node("n-0", kind="n"), node("n-1", ML, kind="n"), pool("n"))
    site.submit(pod("first", 8), pod("second", 8))
    until("one of them runs", lambda: set(site.where().values()) == {"n-0"})
    [held] = site.held(site.space)
    site.cluster.kubectl("taint", "node", "n-1", "dedicated-")
    until("both run", lambda: set(site.where().values()) == {"n-0", "n-1"})

    site.cluster.kubectl("taint", "node", "n-0", "n-1", "broken=yes:NoExecute")
    site.submit(pod("third"))
    site.hears("third", "it does not tolerate broken=yes:NoExecute, the taint of every node of it")
    assert held in site.running(site.space) or site.held(site.space)
    assert "third" in site.held(site.space)


def test_required_node_affinity_is_judged_on_every_node(site: Site) -> None:
    site.build(
        node("a-0", kind="a", zone="x", speed="9"),
        node("a-1", kind="a", zone="y", speed="10"),
        node("a-2", kind="a", speed="100"),
        pool("a"),
    )
    site.submit(
        pod("in-y", 4, affinity=requires(expression("zone", "In", "y", "z"))),
        pod("no-zone", 4, affinity=requires(expression("zone", "DoesNotExist"))),
        pod("not-y", 8, affinity=requires(expression("zone", "NotIn", "y"))),
        pod("fast", 4, affinity=requires(expression("speed", "Gt", "9"), ZONED)),
        pod("nowhere", 1, affinity=requires(expression("zone", "In", "nix"))),
        pod("too-slow", 1, affinity=requires(expression("speed", "Lt", "5"))),
        pod("selects", 1, nodeSelector={"zone": "nix"}),
    )  # fmt: skip
    site.hears("nowhere", "its nodes do not match the pod's node affinity, zone=nix")
    site.hears("too-slow", "its nodes do not match the pod's node affinity, speed < 5")
    site.hears("selects", "its nodes lack the labels of the pod's node selector, zone=nix")
    site.run(in_y="a-1", fast="a-1", no_zone="a-2", not_y="a-0")
    assert sorted(site.held(site.space)) == ["nowhere", "selects", "too-slow"]

    site.cluster.kubectl("label", "node", "a-2", "zone=nix")
    until("they run", lambda: {"nowhere", "selects"} <= set(site.where()))
    assert site.where()["nowhere"] == site.where()["selects"] == "a-2"


def test_pod_without_a_matching_node_does_not_block_other_pods(site: Site) -> None:
    site.build(node("p-0", ML, kind="p"), node("p-1", kind="p"), pool("p"))
    site.submit(
        pod("wall", 8, tolerations=[BEARS_ML], nodeSelector={"kubernetes.io/hostname": "p-0"})
    )
    site.run(wall="p-0")
    site.submit(pod("big", 8))
    site.run(wall="p-0", big="p-1")
    site.submit(pod("waits", 8))
    site.hears("waits", "waits for 8 nvidia.com/gpu of pool p")
    site.delete(site.space, "wall")
    site.submit(pod("small", 1, tolerations=[BEARS_ML]))
    site.run(big="p-1", small="p-0")  # the waiting pod cannot use the free node
    assert site.held(site.space) == ["waits"]


def test_no_pod_is_released_in_a_paused_pool_or_tenant(site: Site) -> None:
    site.build(node("q-0", kind="q"), node("r-0", kind="r"), pool("q", paused=True), pool("r"))
    site.says("q", "Ready", "False", "Paused")
    site.submit(into(pod("for-q"), "q"), pod("for-any"))
    site.hears("for-q", "pool q: it is paused")
    site.run(for_any="r-0")
    site.build(pool("q", paused=False))
    site.run(for_any="r-0", for_q="q-0")
    site.says("q", "Ready", "True", "InForce")

    site.tenant(site.space, "1", site.space, paused=True)
    until("it is told", lambda: "conditions" in site.get("tenant", site.space).get("status", {}))
    site.submit(pod("later"))
    site.hears("later", "its tenant is paused")
    assert site.held(site.space) == ["later"]
    site.tenant(site.space, "1", site.space, paused=False)
    until("it runs", lambda: "later" in site.where())


def test_overlapping_pools_and_nodes_without_a_pool_are_reported(site: Site) -> None:
    site.build(node("s-0", kind="s"), node("s-1", kind="s"), pool("s"))
    site.says("s", "Ready", "True", "InForce")
    site.says("s", "NodesLeftOut", "True", "InNoPool")  # the nodes of the stage
    assert "8 nodes" in site.condition("s", "NodesLeftOut")["message"]
    assert site.metric("controller", "fairgate_nodes_without_pool") == 8

    site.build(pool("tt") | {"spec": {"nodeSelector": {"kubernetes.io/hostname": "s-1"}}})
    site.says("tt", "Overlap", "True", "SelectsNodesOfAnother")
    assert "1 node (s-1) of pool s" in site.condition("tt", "Overlap")["message"]
    site.says("s", "Overlap", "False", "Apart")
    site.submit(into(pod("p"), "tt"))
    site.hears("p", "it selects nodes of an earlier pool")
    assert site.held(site.space) == ["p"]
    site.cluster.kubectl("delete", "pool", "s")
    site.run(p="s-1")
    site.says("tt", "Overlap", "False", "Apart")


def test_pool_status_shows_capacity_used_free_and_fragmentation(site: Site) -> None:
    site.build(node("u-0", kind="u"), node("u-1", kind="u"), pool("u"))
    site.submit(pod("a", 6), pod("b", 6))
    # Their uids decide their order if both are created in one second.
    until("both run", lambda: sorted(site.where().values()) == ["u-0", "u-1"])
    site.submit(pod("c", 6))
    site.hears("c", "waits for 6 nvidia.com/gpu")

    def counts() -> bool:
        status = site.get("pool", "u").get("status", {})
        found = [status.get(each, {}).get(GPU) for each in ("capacity", "used", "free")]
        return found == ["16", "12", "4"] and status["nodes"] == 2

    until("it is counted", counts)
    # A new leader sees the existing pods but not pods that were deleted earlier.
    site.cluster.stop_fairgate("controller")
    site.cluster.start_fairgate("controller")
    # A pod of six GPUs cannot use the four free GPUs. Pods of earlier tests could have used these
    # GPUs.
    told = lambda: float(site.get("pool", "u")["status"].get("fragmentation", "0"))  # noqa: E731
    until("it is told", lambda: told() > 0)
    printed = site.cluster.kubectl("get", "pools", "u", "-o", "wide")
    assert "FREE" in printed
    assert "InForce" in printed


def test_a_toleration_that_no_pod_could_have_is_refused_in_the_pool(site: Site) -> None:
    wrong = pool("v", tolerations=[{"operator": "Equal", "value": "x"}])
    with pytest.raises(ClusterError, match="write operator Exists"):
        site.apply("default", wrong)
    assert not any(GATE in gates(each) for each in site.pods(site.space))


def like(item: Object, app: str) -> Object:
    """Return a pod with an `app` label."""
    item["metadata"]["labels"] = {"app": app}
    return item


def of(app: str, **more: object) -> Object:
    """Return a rule about the pods of an app."""
    return {"labelSelector": {"matchLabels": {"app": app}}, **more}


def test_pods_with_mutual_anti_affinity_are_released_as_nodes_appear(site: Site) -> None:
    site.build(node("w-0", kind="w"), node("w-1", kind="w"), pool("w"))
    rule = [of("db", topologyKey="kubernetes.io/hostname")]
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": rule}}
    site.submit(*(like(pod(f"db-{n}", affinity=apart), "db") for n in range(3)))
    until("two run", lambda: sorted(site.where().values()) == ["w-0", "w-1"])
    [held] = site.held(site.space)
    site.hears(held, "its required pod anti-affinity by kubernetes.io/hostname leaves it no node")
    site.submit(pod("beside", 7))
    until("it holds up nobody", lambda: "beside" in site.where())
    site.build(node("w-2", kind="w"))
    until("it runs", lambda: site.where().get(held) == "w-2")


def test_hard_topology_spread_holds_pods_if_a_zone_is_full(site: Site) -> None:
    wide = {**ROOM, GPU: "2"}
    small = node("y-0", kind="y", zone="y")
    small["status"] = {"capacity": wide, "allocatable": wide}
    site.build(node("x-0", kind="y", zone="x"), small, pool("y"))
    spread = of("web", maxSkew=1, topologyKey="zone", whenUnsatisfiable="DoNotSchedule")
    rules = {"topologySpreadConstraints": [spread]}
    site.submit(*(like(pod(f"web-{n}", **rules), "web") for n in range(8)))
    until("five run", lambda: sorted(site.where().values()) == ["x-0"] * 3 + ["y-0"] * 2)
    held = site.held(site.space)
    assert len(held) == 3  # a sixth pod would give x two pods more than y
    site.build(node("y-1", kind="y", zone="y"))
    until("all run", lambda: len(site.where()) == 8)
    assert sum(where == "x-0" for where in site.where().values()) == 4


def test_pod_that_overfills_a_node_by_node_name_blocks_no_other_pod(site: Site) -> None:
    """A pod without devices may set its nodeName and request more than the node has."""
    site.build(node("z-0", kind="z"), node("z-1", kind="z"), pool("z"))
    greedy = pod("greedy", 0, nodeName="z-0")
    greedy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "65"}}
    site.submit(greedy)
    until("it is on its node", lambda: site.where() == {"greedy": "z-0"})
    site.submit(pod("after", 8))
    site.run(greedy="z-0", after="z-1")
