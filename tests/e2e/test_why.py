"""The reason why a pod waits, from the REST API of a full cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.cluster_driver import GPU, Stage, next_second, pod, until
from tests.support.rest import ask


def asker(stage: Stage, namespace: str) -> Callable[[str], Any]:
    """Return a function that queries the reason with an account that may get the pods."""
    kubectl = stage.cluster.kubectl
    kubectl(
        "create", "rolebinding", "look", "-n", namespace, "--clusterrole=view",
        f"--serviceaccount={namespace}:default",
    )  # fmt: skip
    token = kubectl("create", "token", "default", "-n", namespace, "--audience=fairgate").strip()

    def why(name: str) -> Any:
        status, found = ask(stage, f"/v1/workloads/{namespace}/{name}", token)
        return found if status == 200 else {"rule": status, **found}

    return why


def test_why_names_limit_fair_order_and_missing_capacity(stage: Stage) -> None:
    wall, early, late, small = map(stage.namespace, ("why-wall", "early", "late", "small"))
    stage.tenant("early", "1", early)
    stage.tenant("late", "1", late)
    stage.tenant("small", "1", small)
    stage.block(wall)
    stage.apply(early, pod("p", 8), pod("q", 8))
    until("the first are held", lambda: len(stage.held(early)) == 2)
    next_second()
    stage.apply(late, pod("p", 8))
    stage.apply(small, pod("p", 2))
    # The limit is set after the create, because a pod beyond its limit would be refused.
    stage.tenant("small", "1", small, quotas=[{"pool": "default", "limit": {GPU: 1}}])
    of_early, of_late, of_small = (asker(stage, each) for each in (early, late, small))

    until("limit", lambda: of_small("p")["rule"] == "limit")
    assert of_small("p")["numbers"][f"{GPU} limit"] == "1"
    assert of_small("p")["remedies"]

    until("order", lambda: of_late("p")["rule"] == "fair order")
    told = of_late("p")
    assert (told["ahead"][0]["tenant"], told["ahead"][0]["own"]) == ("early", "late")
    assert (told["position"], told["length"], told["state"]) == (1, 1, "held")

    # Both pods were created in the same second, so their uids determine the order.
    first, second = sorted(map(of_early, ("p", "q")), key=lambda found: found["position"])
    assert (first["rule"], first["position"], first["length"]) == ("capacity", 1, 2)
    assert first["numbers"][f"{GPU} free in default"] == "0"
    assert (second["rule"], second["position"]) == ("fair order", 2)
    assert second["numbers"]["own before it"] == "1"

    status, problem = ask(stage, f"/v1/workloads/{late}/p", None)
    assert (status, problem["status"]) == (401, 401)
    assert of_late("nothing")["rule"] == 404

    weight = json.dumps({"spec": {"weight": "4"}})
    stage.cluster.kubectl("patch", "tenant", "late", "--type=merge", "-p", weight)
    until("the weight counts", lambda: of_late("p")["rule"] == "capacity")
    assert of_early(first["name"])["ahead"][0]["tenant"] == "late"
