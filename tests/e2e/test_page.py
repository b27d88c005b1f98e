"""The dashboard on a real cluster: a real token, real rights, and pods that start and end."""

from __future__ import annotations

import subprocess
import sys

from playwright.sync_api import Browser, expect

from tests.support.browser import browser
from tests.support.chart import make
from tests.support.cluster_driver import Stage, pod

__all__ = ["browser"]

RBAC = "rbac.authorization.k8s.io/v1"


def test_a_tenants_admin_sees_their_own_queue_live(stage: Stage, browser: Browser) -> None:
    mine, others = stage.namespace("seen"), stage.namespace("rivals")
    stage.tenant("seen", "1", mine)
    stage.tenant("rivals", "1", others)
    stage.block(others)
    kubectl = stage.cluster.kubectl
    rules = [
        {"apiGroups": ["fairgate.io"], "resources": [resource], "verbs": ["get"], **only}
        for resource, only in (
            ("stream", {}),
            ("tenants/queue", {"resourceNames": ["seen"]}),
        )
    ]
    make(stage.cluster, RBAC, "ClusterRole", "e2e-page", {"rules": rules})
    account = f"--serviceaccount={mine}:default"
    kubectl("create", "clusterrolebinding", "e2e-page", "--clusterrole=e2e-page", account)
    stage.objects += [("clusterrole", "e2e-page"), ("clusterrolebinding", "e2e-page")]
    token = kubectl("create", "token", "default", "-n", mine, "--audience=fairgate").strip()

    # The certificate is signed by the cluster's CA, which browsers do not trust.
    page = browser.new_context(ignore_https_errors=True).new_page()
    page.set_default_timeout(60_000)
    page.goto(stage.cluster.details().api)
    page.get_by_label("Token of audience").fill(token)
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.locator("#tenant-rows")).to_contain_text("seen")
    page.get_by_role("link", name="Queues").click()
    expect(page.locator("main")).to_contain_text("No pod waits")
    stage.apply(mine, pod("first", 8))
    expect(page.locator("#queue-rows")).to_contain_text("capacity 1")
    page.locator("#queue-rows a").last.click()
    expect(page.locator("#pod-rows")).to_contain_text(f"{mine}/first")
    page.get_by_role("link", name=f"{mine}/first").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 of 1")
    page.get_by_role("button", name="Close").click()
    assert "rivals" not in page.content()
    # Pools are not for this account: no tab leads to them, and their address says why.
    expect(page.get_by_role("link", name="History")).to_be_visible()
    expect(page.get_by_role("link", name="Nodes")).to_have_count(0)
    page.goto(f"{stage.cluster.details().api}/#/nodes")
    expect(page.locator("main")).to_contain_text("You may not see the nodes")
    page.context.close()


def test_the_page_opens_with_a_kubeconfig_through_the_api_server(
    stage: Stage, browser: Browser
) -> None:
    details = stage.cluster.details()
    command = [sys.executable, "-m", "app.kubectl", "open", "--no-browser"]
    with subprocess.Popen(
        [*command, "--kubeconfig", details.kubeconfig], stdout=subprocess.PIPE, text=True
    ) as proxy:
        try:
            assert proxy.stdout is not None
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(proxy.stdout.readline().strip())
            expect(page.get_by_role("status").first).to_have_text("Live")
            page.close()
        finally:
            proxy.terminate()
