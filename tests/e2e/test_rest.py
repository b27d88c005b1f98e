"""The REST API over TLS, with real tokens and real RBAC."""

from __future__ import annotations

from tests.support.cluster_driver import Stage, pod, until
from tests.support.rest import ask


def test_queue_is_shown_only_to_users_with_the_rbac_right(stage: Stage) -> None:
    wall, ours = stage.namespace("wall"), stage.namespace("shown")
    stage.tenant("shown", "1", ours)
    stage.block(wall)
    stage.apply(ours, pod("first", 8), pod("second", 8))
    kubectl = stage.cluster.kubectl
    token = kubectl("create", "token", "default", "-n", ours, "--audience=fairgate").strip()
    other = kubectl("create", "token", "default", "-n", ours).strip()
    path = "/v1/tenants/shown/queue"
    assert ask(stage, path, None)[0] == 401
    assert ask(stage, path, other)[0] == 401  # a token for another audience
    status, problem = ask(stage, path, token)
    assert status == 403
    assert "tenants" in problem["detail"]
    rule = ("--verb=get", "--resource=tenants.fairgate.io/queue", "--resource-name=shown")
    kubectl("create", "clusterrole", "e2e-queue", *rule)
    account = f"--serviceaccount={ours}:default"
    kubectl("create", "clusterrolebinding", "e2e-queue", "--clusterrole=e2e-queue", account)
    stage.objects += [("clusterrole", "e2e-queue"), ("clusterrolebinding", "e2e-queue")]
    until("RBAC lets it in", lambda: ask(stage, path, token)[0] == 200)
    until("both are shown", lambda: len(ask(stage, path, token)[1]["items"]) == 2)
    assert ask(stage, "/v1/tenants/other/queue", token)[0] == 403
