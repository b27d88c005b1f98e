"""Policies as files of the API server."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
import yaml

from app.commands.enforcement import command
from app.commands.enforcement.command import (
    EnforcementOptions,
    admission_configuration,
    static_policies,
)
from app.core.errors import ClusterUnavailable, InvalidInput
from app.core.kubeconfig import KubeconfigOptions

POLICIES = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: fairgate-create, labels: {app.kubernetes.io/managed-by: Helm}}
spec: {failurePolicy: Fail}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: fairgate-create}
spec: {policyName: fairgate-create, validationActions: [Deny]}
"""
WEBHOOKS = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: fairgate}
webhooks: []
"""
DATA = {"mode": "Enforce", "policies.yaml": POLICIES, "webhooks.yaml": WEBHOOKS}


def test_names_have_the_reserved_ending_and_webhooks_are_left_out() -> None:
    policy, binding = static_policies(DATA)

    assert policy["metadata"] == {"name": "fairgate-create.static.k8s.io"}
    assert binding["metadata"] == {"name": "fairgate-create.static.k8s.io"}
    assert binding["spec"]["policyName"] == "fairgate-create.static.k8s.io"
    assert binding["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({**DATA, "mode": "Observe"}, "mode Observe"),
        ({"webhooks.yaml": WEBHOOKS}, "no policies"),
        (
            {"policies.yaml": POLICIES.replace("Fail}", "Fail, paramKind: {kind: ConfigMap}}")},
            "has parameters",
        ),
    ],
)
def test_policies_that_an_api_server_would_refuse_or_that_must_not_deny_are_an_error(
    data: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        static_policies(data)


def test_the_configuration_names_the_folder() -> None:
    found = admission_configuration(Path("/etc/kubernetes/fairgate"))

    [plugin] = yaml.safe_load(yaml.safe_dump(found))["plugins"]
    assert plugin["name"] == "ValidatingAdmissionPolicy"
    assert plugin["configuration"]["staticManifestsDir"] == "/etc/kubernetes/fairgate"


def test_another_server_than_an_api_server_is_named_and_not_a_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Mock(request=AsyncMock(return_value=b"<html>login</html>"), close=AsyncMock())
    where = "app.commands.enforcement.command"
    monkeypatch.setattr(f"{where}.Client.connect_with", AsyncMock(return_value=client))
    monkeypatch.setattr(f"{where}.kubeconfig_files.find_caller", Mock())
    options = EnforcementOptions(tmp_path, KubeconfigOptions(), "fairgate-system")
    with pytest.raises(ClusterUnavailable, match="something else than Kubernetes"):
        command.run(options)
    assert list(tmp_path.iterdir()) == []
