"""Rows 22 and 27: more than a fair share by many pods, or by flooding the API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from app.core.errors import ClusterRefused
from app.kube.client import Client
from tests.e2e.attacks.attack_cluster import RED, TOO_MANY, AttackEnvironment, body, layer_of, path
from tests.e2e.attacks.attack_namespaces import Yard, yard
from tests.e2e.attacks.outcomes import NOT_ITS_LAYER, Outcomes
from tests.support.cluster_driver import Stage, until
from tests.support.personas import Person, person
from tests.support.shares import status

NODES = 4
GPUS = 32
WANTED = 12
"""Pods of one GPU that each of three tenants wants: more than a third of all GPUs."""

FLOOD = 5000
"""Most pods of the flood. It ends as soon as enough of them were refused."""
REFUSALS = 100
MOST = 200
AT_ONCE = 8
LIMITED = "its limit (maxPending) is {}"


# --- row 22 ---


@contextmanager
def nodes_closed(env: AttackEnvironment) -> Iterator[None]:
    """Stop all releases: no node accepts pods."""
    nodes = [f"gpu-node-{number}" for number in range(NODES)]
    env.cluster.kubectl("cordon", *nodes)
    try:
        yield
    finally:
        env.cluster.kubectl("uncordon", *nodes)


def settle(env: AttackEnvironment, settler: Person, count: int) -> list[str]:
    """Create namespaces as a permitted user; return their names once they accept pods."""
    names = [env.name("colony") for _ in range(count)]

    def make(name: str) -> None:
        settler.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until("pods can be made", lambda: settler.refused("GET", account, None) is None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make, names))
    return names


def leave(env: AttackEnvironment, namespaces: list[str]) -> None:
    for name in namespaces:
        env.admin.call("DELETE", path(name))
    until("they are empty", lambda: not any(env.admin.get(path(n))["items"] for n in namespaces))
    env.cluster.kubectl("delete", "namespace", "--wait=false", *namespaces)


def test_22_many_namespaces_or_users_do_not_increase_the_share(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "a hundred namespaces, or users, to weigh more"
    ours = yard(env, stage)
    if env.mode == "killed":
        said = ours.make(body("p"))
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(22, env.mode, attack, "outage", said or "")
        return
    users = [env.name("face") for _ in range(WANTED)]
    crowd = yard(env, stage, *users)
    for name, namespace in (("honest", ours.namespace), ("crowd", crowd.namespace)):
        stage.tenant(name, "1", namespace)
    env.cluster.kubectl("create", "clusterrole", "settler", "--verb=create", "--resource=ns")
    for role in ("settler", "edit"):
        name = env.name("grant")
        to = (f"--clusterrole={role}", "--user=settler")
        env.cluster.kubectl("create", "clusterrolebinding", name, *to)
        stage.objects.append(("clusterrolebinding", name))
    stage.objects.append(("clusterrole", "settler"))
    settler = person(env.cluster, "settler")
    colonies = settle(env, settler, 2 * WANTED if env.mode == "everything" else WANTED)
    red = env.admin.get(path(RED))["items"]
    others = sum("nodeName" in each["spec"] for each in red)  # pods that other attacks need
    try:
        with nodes_closed(env):
            for number, user in enumerate(users):
                assert ours.make(body(f"p-{number}")) is None
                face = person(env.cluster, user)
                assert crowd.make(body(f"p-{number}"), user, face) is None
            for name in colonies:
                colony = Yard(env, stage, name)
                assert colony.make(body("p"), "settler", settler) is None
            until("the honest wait", lambda: status(stage, "honest").get("pending") == WANTED)
            until("the crowd waits", lambda: status(stage, "crowd").get("pending") == WANTED)
        parties = ("honest", "crowd", "default")
        until("all is taken", lambda: sum(map(ours.used, parties)) == GPUS)
        assert ours.used("honest") >= GPUS // 3
        assert ours.used("crowd") <= GPUS // 3 + 1
        assert ours.used("default") <= max(others, GPUS // 3 + 1)
        charged = lambda: len(ours.released()) == ours.used("honest")  # noqa: E731
        until("what is charged to the honest is released", charged)
    finally:
        leave(env, colonies)
    saw = f"{len(colonies)} namespaces, {WANTED} users and one honest user got a third each"
    outcomes(22, env.mode, attack, "D", saw)


def test_22_forged_tenant_label_does_not_change_the_charged_tenant(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "a pod with the label of another tenant"
    ours = yard(env, stage)
    item = body("p")
    if env.mode == "policies":
        item = env.stamped(item, "mallory", ours.namespace)
    item["metadata"].setdefault("labels", {})["fairgate.io/tenant"] = "rich"
    said = env.mallory.refused("POST", path(ours.namespace), item)
    if env.mode == "killed":
        assert layer_of(said) == "outage"
        assert ours.pods == []
        outcomes(22, env.mode, attack, "outage", said or "")
        return
    assert said is None
    until("it is released", lambda: ours.released() == {"p"})
    true = f"ns.{ours.namespace}"
    assert env.pod("p", ours.namespace)["metadata"]["labels"]["fairgate.io/tenant"] == true
    until("it is charged to its own", lambda: ours.used() == 1)
    assert ours.used("rich") == 0
    outcomes(22, env.mode, attack, "D", "charged to the tenant of its namespace")


# --- row 27 ---


def test_27_flood_of_pods_of_one_tenant_does_not_block_others(
    env: AttackEnvironment, stage: Stage, outcomes: Outcomes
) -> None:
    attack = "a flood of pods of one tenant"
    ours, other = yard(env, stage), yard(env, stage, "bob")
    most = MOST if env.mode == "everything" else 3
    stage.tenant("flood", "1", ours.namespace, maxPending=most)
    until("it is counted", lambda: status(stage, "flood").get("pending") == 0)
    match env.mode:
        case "killed":
            said = ours.make(body("p", TOO_MANY))
            assert layer_of(said) == "outage"
            assert ours.pods == []
            outcomes(27, env.mode, attack, "outage", said or "")
            return
        case "policies":
            assert [ours.make(body(f"p-{i}", TOO_MANY)) for i in range(3 * most)] == [None] * 9
            saw = "policies cannot count: created, and they wait in one queue"
            outcomes(27, env.mode, attack, NOT_ITS_LAYER, saw)
        case "everything":
            refusals = asyncio.run(flood(env, stage, ours.namespace, other))
            assert len(refusals) >= REFUSALS
            assert len(ours.pods) >= most
            assert all(LIMITED.format(most) in each for each in refusals)
            outcomes(27, env.mode, attack, "W", refusals[-1])
        case _:
            refused: list[str] = []
            until("one is refused", lambda: one_more(ours, refused))
            assert LIMITED.format(most) in refused[0]
            assert layer_of(refused[0]) == "W"
            outcomes(27, env.mode, attack, "W", refused[0])
    if env.mode != "everything":
        assert other.make(body("modest"), "bob", env.bob) is None
    until("others go on", lambda: stage.running(other.namespace) == ["modest"])
    assert ours.released() == set()
    outcomes(27, env.mode, attack, "D", "a pod of another tenant was released meanwhile")
    env.admin.call("DELETE", path(ours.namespace))


def one_more(ours: Yard, refused: list[str]) -> bool:
    """Create a pod that waits for ever; return whether it was refused, and record the refusal."""
    said = ours.make(body(ours.env.name(), TOO_MANY))
    refused += [said] if said else []
    return said is not None


async def flood(env: AttackEnvironment, stage: Stage, namespace: str, other: Yard) -> list[str]:
    """Create pods as fast as possible, and one pod of another tenant among them; return refusals.

    The flood ends when enough pods were refused and the other tenant's pod has been released.
    """
    kubeconfig = stage.folder / "flood.kubeconfig"
    kubeconfig.write_text(env.cluster.create_user("mallory"))
    client = await Client.connect(kubeconfig, pool_size=AT_ONCE)
    numbers, refusals = iter(range(FLOOD)), list[str]()

    async def create() -> None:
        for number in numbers:
            item = body(f"p-{number}", TOO_MANY)
            try:
                await client.request("POST", path(namespace), body=item)
            except ClusterRefused as error:
                refusals.append(str(error))
            if number == MOST:
                bob = (body("modest"), "bob", env.bob)
                assert await asyncio.to_thread(other.make, *bob) is None
            if number > MOST and len(refusals) >= REFUSALS and other.released() == {"modest"}:
                return

    try:
        await asyncio.gather(*(create() for _ in range(AT_ONCE)))
    finally:
        await client.close()
    return refusals
