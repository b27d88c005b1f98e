"""Guarantees, limits, nodes and the Policy, on a real API server with the stock scheduler."""

from __future__ import annotations

from tests.support.cluster_driver import GPU, Stage, pod, released_in_order, until
from tests.support.shares import policy, quotas, status


def told(stage: Stage, namespace: str, name: str) -> list[str]:
    """Return the messages of a pod's Held events."""
    selector = f"--field-selector=reason=Held,involvedObject.name={name}"
    found = stage.get("events", "-n", namespace, selector)["items"]
    return [str(event["message"]) for event in found]


def test_tenant_within_its_guarantee_is_served_before_borrowers(stage: Stage) -> None:
    wall, poor, rich = map(stage.namespace, ("wall", "owner", "borrower"))
    stage.tenant("owner", "1", poor, quotas=quotas(guarantee=16))
    stage.tenant("borrower", "9", rich)
    blockers = stage.block(wall)
    stage.apply(rich, *(pod(f"rich-{i}", 8) for i in range(4)))
    until("the borrower waits", lambda: status(stage, "borrower").get("pending") == 4)
    stage.apply(poor, *(pod(f"poor-{i}", 8) for i in range(4)))
    until("the owner waits", lambda: status(stage, "owner").get("pending") == 4)
    released = lambda: len(stage.using(poor)) + len(stage.using(rich))  # noqa: E731
    for number, blocker in enumerate(blockers[:4], start=1):
        stage.delete(wall, blocker)
        until("one more is released", lambda n=number: released() == n)
    order = released_in_order(stage.pods(poor) + stage.pods(rich))
    assert [name.partition("-")[0] for name in order] == ["poor", "poor", "rich", "rich"]

    def shown() -> bool:
        held = [(status(stage, each).get("used"), status(stage, each).get("borrowed"))
                for each in ("owner", "borrower")]  # fmt: skip
        return held == [({GPU: "16"}, {GPU: "0"}), ({GPU: "16"}, {GPU: "16"})]

    until("only one of them borrows", shown)


def test_pod_beyond_the_limit_waits_with_a_reason_in_an_empty_pool(stage: Stage) -> None:
    ours = stage.namespace("limited")
    stage.tenant("limited", "1", ours, quotas=quotas(limit=8))
    until("the leader knows the tenant", lambda: status(stage, "limited").get("pending") == 0)
    stage.apply(ours, pod("first", 6))
    until("one runs", lambda: stage.running(ours) == ["first"])
    stage.apply(ours, pod("second", 3))
    until("it is said why the other waits", lambda: bool(told(stage, ours, "second")))
    (message,) = told(stage, ours, "second")
    assert message.startswith("queued: 1 of 1 in limited/")
    assert message.endswith(
        f"waits for 3 {GPU} of pool default; tenant limited is at its limit: "
        f"6 {GPU} used, 3 {GPU} asked, 8 {GPU} limit; more: kubectl fairgate why second -n {ours}"
    )
    stage.apply(ours, pod("third", 2))
    until("what is within the limit runs", lambda: set(stage.running(ours)) == {"first", "third"})
    assert stage.held(ours) == ["second"]
    stage.tenant("limited", "1", ours, quotas=quotas(limit=11))
    until("it runs when the limit is raised", lambda: len(stage.running(ours)) == 3)


def test_pod_larger_than_any_node_waits_and_blocks_no_other_pod(stage: Stage) -> None:
    ours = stage.namespace("large")
    stage.apply(ours, pod("too-large", 9))
    until("it waits", lambda: bool(told(stage, ours, "too-large")))
    stage.apply(ours, *(pod(f"half-{i}", 5) for i in range(7)))
    until("others run", lambda: len(stage.running(ours)) == 7)  # 8 + 7 * 3 devices are left
    stage.apply(ours, pod("whole", 8), pod("another", 8))
    until("the one node left is used whole", lambda: len(stage.running(ours)) == 8)
    assert "too-large" in stage.held(ours)
    assert len(stage.held(ours)) == 2


def test_the_policy_takes_effect_when_it_changes(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("strict")
    policy(stage, backfill=False)
    high = stage.priority_class("e2e-first", 1_000)
    stage.block(wall, nodes=7)
    stage.apply(wall, pod("half-0", 4), pod("half-1", 4))
    until("the cluster is full", lambda: len(stage.running(wall)) == 9)
    stage.apply(ours, pod("large", 8, priority=high), pod("small", 1))
    for name in ("large", "small"):
        until(f"{name} waits", lambda n=name: bool(told(stage, ours, n)))
    stage.delete(wall, "half-0")
    freed = lambda: stage.metric("controller", "fairgate_used_resources", 'tenant="ns.wall"')  # noqa: E731
    until("the leader knows what is free", lambda: freed() == 60)
    assert set(stage.held(ours)) == {"large", "small"}
    policy(stage, backfill=True)
    until("what fits goes first", lambda: stage.running(ours) == ["small"])
    assert stage.held(ours) == ["large"]
