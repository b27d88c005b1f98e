"""Row 15: requests for GPUs in forms that might not be counted, or only in part."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.core.admission import validation
from tests.e2e.attacks.attack_cluster import RED, AttackEnvironment, Object, body, layer_of, path
from tests.e2e.attacks.attack_helpers import answer, remove, submit, told
from tests.e2e.attacks.outcomes import Outcomes
from tests.support.cluster_driver import GATE, GPU, gates, until
from tests.support.personas import Refused

MANY = 100
"""The highest number of containers that Fairgate accepts."""


def asks(amount: object, name: str = "c", resource: str = GPU, **more: object) -> Object:
    """Return a container."""
    limits = {"resources": {"limits": {resource: amount}}}
    return {"name": name, "image": "i", **limits, **more}


def plain(name: str = "c") -> Object:
    return {"name": name, "image": "i"}


def spread(amount: object, count: int) -> list[Object]:
    return [asks(amount, f"c{number}") for number in range(count)]


SIDE = {"restartPolicy": "Always"}
WAYS: dict[str, tuple[int, list[Object], list[Object]]] = {
    "in an init container": (11, [plain()], [asks(11, "i")]),
    "in a sidecar": (12, [asks(6)], [asks(6, "s", **SIDE)]),
    "in an init container after sidecars": (13, [asks(1)], [asks(5, "s", **SIDE), asks(8, "i")]),
    "in many containers": (14, spread(2, 7), []),
    "as 15000m": (15, [asks("15000m")], []),
    "as 1.6e1": (16, [asks("1.6e1")], []),
    "as 0.017k": (17, [asks("0.017k")], []),
    "in a hundred containers": (MANY, spread(1, MANY), []),
    "in the last of a hundred": (
        18,
        [*(plain(f"p{number}") for number in range(MANY - 1)), asks(18)],
        [],
    ),
}
"""Form of the request: expected count, containers, init containers. No node has this many GPUs."""


@pytest.mark.parametrize("way", WAYS)
def test_15_every_requested_gpu_is_counted(
    env: AttackEnvironment, outcomes: Outcomes, way: str
) -> None:
    counted, containers, inits = WAYS[way]
    name = env.name("modest")
    bare = body(name, 0, containers=containers, initContainers=inits)
    said = answer(env.mallory, "POST", path(RED), bare)
    if isinstance(said, Refused):
        assert layer_of(said.message) == {"policies": "P", "killed": "outage"}[env.mode]
        assert env.mode == "killed" or validation.UNGATED in said.message
        assert not env.exists(name)
        outcomes(
            15,
            env.mode,
            "GPUs in odd places and spellings",
            layer_of(said.message),
            said.message,
        )
        if env.mode == "killed":
            return
        submit(env, bare)
    assert gates(env.pod(name)) == [GATE]
    until("it is told", told(env, name, f"waits for {counted} {GPU}"))
    outcomes(15, env.mode, "GPUs in odd places and spellings", "D", "each is counted, and held")
    remove(env, name)


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "amd.com/gpu"]
)
def test_15_every_managed_name_is_held(
    env: AttackEnvironment, outcomes: Outcomes, resource: str
) -> None:
    name = env.name("other")
    bare = body(name, 0, containers=[asks(64, resource=resource)])
    said = answer(env.mallory, "POST", path(RED), bare)
    if isinstance(said, Refused):
        assert layer_of(said.message) == {"policies": "P", "killed": "outage"}[env.mode]
        assert env.mode == "killed" or validation.UNGATED in said.message
        assert not env.exists(name)
        return
    assert gates(said) == [GATE]
    until("it is told", told(env, name, f"waits for 64 {resource}"))
    remove(env, name)


def pod_level(pod: Object) -> None:
    pod["spec"]["resources"] = {"limits": {GPU: 8}}


def by_request(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"] = {"requests": {GPU: 8}}


def less(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"] = {"requests": {GPU: 1}, "limits": {GPU: 8}}


def half(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: "500m"}}


def negative(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: -8}}


def prefixed(pod: Object) -> None:
    pod["spec"]["containers"][0]["resources"] = {"limits": {"requests.nvidia.com/gpu": 8}}


UNREAL: dict[str, tuple[Callable[[Object], None], str]] = {
    "at pod level": (pod_level, f'Unsupported value: "{GPU}"'),
    "by a request alone": (by_request, "Limit must be set for non overcommitable resources"),
    "by a request below the limit": (less, f"must be equal to {GPU} limit of 8"),
    "by halves": (half, "must be an integer"),
    "below zero": (negative, "must be greater than or equal to 0"),
    "by another prefix": (prefixed, "doesn't follow extended resource name standard"),
}


@pytest.mark.parametrize("way", UNREAL)
def test_15_impossible_device_amount_is_refused(
    env: AttackEnvironment, outcomes: Outcomes, way: str
) -> None:
    write, sentence = UNREAL[way]
    name, layer = env.name("unreal"), "K"
    made = body(name, 0)
    write(made)
    # The webhook does not receive pods with only an unmanaged name or devices at pod level.
    if env.mode == "killed" and write not in (prefixed, pod_level):
        layer, sentence = "outage", "failed calling webhook"
    elif write is negative and env.mode in ("everything", "webhook"):
        layer, sentence = "W", "-8 is negative; write 0 or more"
    said = env.mallory.refused("POST", path(RED), made)
    assert said is not None
    assert layer_of(said) == layer
    assert sentence in said
    assert not env.exists(name)
    outcomes(15, env.mode, "amounts that do not exist", layer, said)


@pytest.mark.parametrize("resource", ["nvidia.com/GPU", "nvidia.com/gpus"])
def test_15_no_node_offers_a_name_that_is_not_managed(
    env: AttackEnvironment, outcomes: Outcomes, resource: str
) -> None:
    """Such a pod is held in no mode and stays unscheduled: Kubernetes compares names exactly."""
    name = env.name("misspelt")
    made = body(name, 0, containers=[asks(1, resource=resource)])
    assert env.mallory.refused("POST", path(RED), made) is None
    until("no node takes it", lambda: f"Insufficient {resource}" in scheduled(env, name))
    assert gates(env.pod(name)) == []
    assert "nodeName" not in env.pod(name)["spec"]
    outcomes(15, env.mode, "an unknown resource name", "K", "no node has it")
    remove(env, name)


def scheduled(env: AttackEnvironment, name: str) -> str:
    """Return the message of the PodScheduled condition."""
    conditions = env.pod(name)["status"].get("conditions", ())
    return " ".join(c.get("message", "") for c in conditions if c["type"] == "PodScheduled")
