"""The values file and the output of `fairgate doctor`."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
import yaml

from app.commands.doctor.assumptions import planned_settings
from app.commands.doctor.chart_values import as_values, as_yaml, chart_values
from app.commands.doctor.checks import run_checks
from app.commands.doctor.findings import Level
from app.commands.doctor.report import FINDINGS, as_document, as_text, has_problem
from app.commands.doctor.snapshot import ClusterSnapshot, take_snapshot
from app.devcluster.fairgate_install import CHART
from app.terminal import output
from tests.support.doctor_cluster import (
    AGENTS,
    BINDER,
    BINDINGS,
    RAY_CLUSTERS,
    ROLES,
    UNKNOWN_KIND,
    daemon_set,
    made,
    pod,
    role_binding,
)
from tests.support.doctor_rig import HOME, NOW, cluster, installed, look

IN_USE = [
    *AGENTS,
    *ROLES,
    *BINDINGS,
    RAY_CLUSTERS,
    UNKNOWN_KIND,
    pod("team-a", "train", 1, schedulerName="volcano"),
    made("Node", "v1", "m", status={"capacity": {"habana.ai/gaudi": "8"}}),
    made("DeviceClass", "x", "tpu", spec={"extendedResourceName": "example.com/tpu"}),
]

DIGEST = "sha256:" + "a" * 64


def values_of(seen: ClusterSnapshot, redis: str = "", image: str = "") -> dict[str, Any]:
    """Return the values, after a check that the YAML with comments has the same content."""
    sections = chart_values(seen, HOME, redis, image)
    assert yaml.safe_load(as_yaml(sections)) == as_values(sections)
    return as_values(sections)


def test_values_of_a_cluster_in_order_have_only_mode_image_and_redis() -> None:
    values = values_of(look(cluster(pod("team-a", "train", 1))))
    assert list(values) == ["mode", "image", "redis"]
    assert values["mode"] == "Observe"
    assert values["redis"] == {"bundled": {"enabled": True}}


def test_a_fault_of_redis_is_a_comment_of_its_value() -> None:
    url, fault = "redis://cache:6379/0", "Redis at cache:6379 says \x1b[31m no."
    text = as_yaml(chart_values(look(cluster()), HOME, url, "", [fault]))
    shown = "# Not in order: Redis at cache:6379 says \\u001b[31m no."
    assert f"{shown}\nredis:\n  url: {url}\n" in text
    assert yaml.safe_load(text)["redis"] == {"url": url}


def test_values_list_all_parts_of_a_cluster_in_use() -> None:
    values = values_of(look(cluster(*IN_USE)))
    assert values["extraExemptNamespaces"] == sorted(a["metadata"]["namespace"] for a in AGENTS)
    assert values["extraManagedResources"] == ["habana.ai/gaudi", "example.com/tpu"]
    assert values["deviceClasses"] == {"tpu": "example.com/tpu"}
    assert values["schedulers"] == {
        "names": ["default-scheduler", "volcano"],
        "users": ["system:kube-scheduler", BINDER],
    }
    assert "extraControllerUsers" not in values  # these accounts are trusted with any submitter
    assert {
        "group": "batch.example.com",
        "versions": ["*"],
        "resource": "trainings",
        "path": "spec.replicas{*}.template",
    } in values["extraPodTemplates"]


def test_generated_values_leave_no_problem_in_their_cluster() -> None:
    text = as_yaml(chart_values(look(cluster(*IN_USE)), HOME))
    left = [
        e for e in run_checks(look(cluster(*IN_USE), text), HOME, NOW) if e.level is not Level.OK
    ]
    assert left == []


def test_comments_name_the_agents_of_a_namespace() -> None:
    text = as_yaml(chart_values(look(cluster(*AGENTS)), HOME))
    expected = "- cilium  # DaemonSet cilium (network plugin, privileged container)"
    assert expected in text.splitlines()


def test_another_namespace_of_fairgate_is_exempted() -> None:
    [exempt] = [e for e in chart_values(look(cluster()), "gpu") if e.key == "extraExemptNamespaces"]
    assert exempt.value == ["gpu"]


def test_a_namespace_with_gpu_pods_is_not_exempted() -> None:
    agent = daemon_set("team-a", "shell", "agent", privileged=True)
    assert values_of(look(cluster(agent, pod("team-a", "t", 1))))["extraExemptNamespaces"] == []


def test_namespace_of_a_tenant_is_not_exempted_and_a_comment_explains_it() -> None:
    agent = daemon_set("team-a", "shell", "agent", privileged=True)
    tenant = made("Tenant", "x", "research", spec={"namespaces": ["team-b", "team-a"]})
    seen = look(cluster(agent, AGENTS[0], tenant))
    assert values_of(seen)["extraExemptNamespaces"] == ["calico-system"]
    text = as_yaml(chart_values(seen, HOME))
    assert "# Not exempted: team-a of tenant research, where DaemonSet shell (" in text
    [found] = [each for each in run_checks(seen, HOME, NOW) if "team-a" in each.message]
    assert found.level is Level.PROBLEM
    assert "namespace team-a of tenant research runs node agents" in found.message


def test_an_exempt_namespace_of_a_tenant_is_a_warning() -> None:
    tenant = made("Tenant", "x", "research", spec={"namespaces": ["team-a"]})
    seen = look(cluster(tenant), "extraExemptNamespaces: [team-a]\n")
    [found] = [each for each in run_checks(seen, HOME, NOW) if "team-a" in each.message]
    assert found.level is Level.WARNING
    assert "exempt and belongs to tenant research" in found.message


def test_values_of_an_installation_keep_its_own_settings() -> None:
    values = values_of(look(cluster(*installed().values(), AGENTS[1])))
    assert values["mode"] == "Enforce"
    assert values["image"] == {"repository": "example.com/fairgate", "tag": "1"}
    assert values["extraExemptNamespaces"] == ["calico-system", "cilium"]


@pytest.mark.parametrize("login", [":secret", "user:secret", "secret", "secret:"])
def test_a_password_of_redis_is_not_written(login: str) -> None:
    seen = look(cluster())
    text = as_yaml(chart_values(seen, HOME, f"redis://{login}@redis:6379/0"))
    assert "secret@" not in text
    assert "secret:" not in text
    assert yaml.safe_load(text)["redis"] == {"existingSecret": "fairgate-redis-url"}
    assert values_of(seen, "redis://redis:6379/0")["redis"] == {"url": "redis://redis:6379/0"}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("host:5000/fairgate:1.2", {"repository": "host:5000/fairgate", "tag": "1.2"}),
        ("host:5000/fairgate", {"repository": "host:5000/fairgate"}),
        ("fairgate", {"repository": "fairgate"}),
        (f"host/fairgate@{DIGEST}", {"repository": "host/fairgate", "digest": DIGEST}),
        (f"host:5000/fairgate@{DIGEST}", {"repository": "host:5000/fairgate", "digest": DIGEST}),
        (
            f"host:5000/fairgate:1.2@{DIGEST}",
            {"repository": "host:5000/fairgate", "tag": "1.2", "digest": DIGEST},
        ),
    ],
)
def test_an_image_is_split_into_repository_tag_and_digest(
    image: str, expected: dict[str, str]
) -> None:
    value = values_of(look(cluster()), image=image)["image"]
    assert value == expected
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]["image"]
    for key, part in value.items():
        assert re.search(schema["properties"][key]["pattern"], part)


def test_names_with_yaml_syntax_are_quoted() -> None:
    strange = "a: [#\nb"
    seen = look(cluster(ROLES[0], role_binding("volcano-scheduler", strange)))
    assert values_of(seen)["schedulers"]["users"][-1] == strange


def test_text_has_one_line_for_each_finding_problems_first() -> None:
    seen = look(cluster(*AGENTS, version="v1.31.0"))
    findings = run_checks(seen, HOME, NOW)
    *lines, summary = as_text(findings).splitlines()
    assert len(lines) == len(findings)
    levels = [line.split()[0] for line in lines]
    assert levels == sorted(levels, key=["problem", "warning", "ok"].index)
    assert summary.startswith("5 problems, 1 warning.")
    assert has_problem(findings)


def test_hidden_characters_of_names_are_escaped() -> None:
    seen = look(cluster(ROLES[0], role_binding("volcano-scheduler", "evil\x1b[2J")))
    findings = run_checks(seen, HOME, NOW)
    assert "\x1b" not in as_text(findings)
    json_output = output.OutputOptions(output.OutputFormat.JSON)
    assert "evil\\u001b" in output.as_text(json_output, as_document(findings, {}), FINDINGS)


def test_json_has_findings_and_values() -> None:
    seen = look(cluster(AGENTS[0]))
    document = as_document(run_checks(seen, HOME, NOW), as_values(chart_values(seen, HOME)))
    assert (document["problems"], document["warnings"]) == (1, 0)
    [found] = [each for each in document["findings"] if each["level"] == "problem"]
    assert found["check"] == "exempt-namespaces"
    assert found["objects"] == ["DaemonSet calico-system/calico-node"]
    assert document["values"]["extraExemptNamespaces"] == ["calico-system"]


def test_a_right_to_get_version_is_not_needed_for_the_values() -> None:
    seen = asyncio.run(take_snapshot(cluster(*AGENTS, forbidden=["/version"]), HOME))
    assert len(values_of(seen)["extraExemptNamespaces"]) == len(AGENTS)


def test_values_files_are_read_as_the_chart_reads_them() -> None:
    read = planned_settings("exemptNamespaces: [only]\nextraExemptNamespaces: [more]\n")
    assert read.exempt == ("only", "more")
    assert planned_settings("devices: {refusePrivileged: false}").rules.refuse_privileged is False
