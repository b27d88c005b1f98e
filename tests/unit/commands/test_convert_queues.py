"""Queues of Kueue, Volcano and Slurm become Tenants; other settings are named."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from app.commands.convert import kueue, slurm, volcano
from app.commands.convert.command import convert_kueue, managed_test
from app.commands.convert.kubernetes_objects import read_objects
from app.commands.convert.tenant_documents import Notes, format_quantity, write_documents
from app.config.settings import MANAGED
from app.core.errors import InvalidInput
from app.core.model import Millis, Quota, Tenant
from app.k8s_types.objects import TenantObject
from app.kube.convert_custom import read_tenant

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "coming-from"
GPU = "nvidia.com/gpu"


def tenants(documents: list[dict[str, Any]]) -> dict[str, Tenant]:
    """Return the Tenants as the controller reads them, after a round trip through YAML."""
    found = {}
    for document in yaml.safe_load_all(write_documents(documents)):
        if document["kind"] == "Tenant":
            decoded = msgspec.convert(document, TenantObject, strict=True)
            found[document["metadata"]["name"]] = read_tenant(decoded, Millis(0)).tenant
    return found


def from_kueue(text: str, path: Path, notes: Notes | None = None) -> dict[str, Tenant]:
    path.write_text(text)
    objects = read_objects([path])
    return tenants(kueue.convert(objects, managed_test(MANAGED), notes or Notes()))


def from_slurm(text: str, notes: Notes | None = None) -> dict[str, Tenant]:
    return tenants(slurm.convert("a.cfg", text, "default", notes or Notes()))


def queue(name: str, spec: str) -> str:
    return (
        "---\napiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\n"
        f"metadata: {{name: {name}}}\nspec: {spec}\n"
    )


def flavor(name: str, quota: str) -> str:
    flavors = f"[{{name: {name}, resources: [{{name: {GPU}, {quota}}}]}}]"
    return f"resourceGroups: [{{coveredResources: [{GPU}], flavors: {flavors}}}]"


def test_a_cluster_queue_in_a_cohort_becomes_a_child_tenant() -> None:
    objects = read_objects([EXAMPLES / "kueue.yaml"])
    found = tenants(kueue.convert(objects, managed_test(MANAGED), Notes()))
    vision, research = found["vision"], found["research"]
    assert (vision.parent, vision.namespaces) == ("research", ("vision-train",))
    assert vision.quotas == {"a100": Quota({GPU: 16}, {GPU: 24})}
    assert found["language"].weight == Fraction(1, 2)
    assert found["language"].paused
    assert research.weight == 2
    assert research.quotas == {"a100": Quota({GPU: 40}, {GPU: 40})}


def test_a_resource_flavor_becomes_a_pool() -> None:
    objects = read_objects([EXAMPLES / "kueue.yaml"])
    pool = kueue.convert(objects, managed_test(MANAGED), Notes())[0]
    assert (pool["kind"], pool["metadata"]["name"]) == ("Pool", "a100")
    assert pool["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    assert pool["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_a_cluster_queue_without_a_cohort_may_not_borrow(tmp_path: Path) -> None:
    text = queue("alone", f"{{{flavor('t4', 'nominalQuota: 8')}}}")
    found = from_kueue(text, tmp_path / "q.yaml")
    assert found["alone"].quotas == {"t4": Quota({GPU: 8}, {GPU: 8})}


def test_borrowing_without_a_limit_has_no_limit(tmp_path: Path) -> None:
    text = queue("a", f"{{cohort: all, {flavor('t4', 'nominalQuota: 8')}}}")
    found = from_kueue(text, tmp_path / "q.yaml")
    assert found["a"].quotas == {"t4": Quota({GPU: 8}, {})}
    assert found["all"].quotas == {"t4": Quota({GPU: 8}, {GPU: 8})}


def test_lists_of_kubectl_are_opened(tmp_path: Path) -> None:
    items = [item for item in yaml.safe_load_all((EXAMPLES / "kueue.yaml").read_text()) if item]
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    assert "vision" in from_kueue(listed, tmp_path / "list.yaml")


def test_settings_of_kueue_without_an_equivalent_are_named(tmp_path: Path) -> None:
    notes = Notes()
    spec = "{cohort: all, stopPolicy: HoldAndDrain, admissionChecks: [prov], newField: 1, "
    quota = "nominalQuota: 8, lendingLimit: 2"
    text = queue("a", spec + flavor("t4", quota) + "}") + queue("b", "{admissionChecks: [x]}")
    from_kueue(text, tmp_path / "q.yaml", notes)
    lines = notes.lines()
    assert "ClusterQueue a, b: admissionChecks have no equivalent." in lines
    assert "ClusterQueue a: newField has no equivalent." in lines
    for said in ("lendingLimit", "HoldAndDrain"):
        assert [line for line in lines if said in line], said
    assert (
        "ResourceFlavor t4: this flavor is not in the input; create a Pool of this name." in lines
    )


def test_a_cohort_with_the_name_of_a_queue_gets_another_name(tmp_path: Path) -> None:
    notes = Notes()
    text = queue("gpu", f"{{cohort: gpu, {flavor('t4', 'nominalQuota: 1')}}}")
    found = from_kueue(text, tmp_path / "q.yaml", notes)
    assert found["gpu"].parent == "cohort-gpu"
    assert "Cohort gpu: the Tenant is named cohort-gpu." in notes.lines()


def test_namespace_in_two_queues_stays_with_the_first_tenant(tmp_path: Path) -> None:
    notes = Notes()
    local = (
        "---\napiVersion: kueue.x-k8s.io/v1beta1\nkind: LocalQueue\n"
        "metadata: {{name: {0}, namespace: team}}\nspec: {{clusterQueue: {0}}}\n"
    )
    text = queue("a", "{}") + queue("b", "{}") + local.format("a") + local.format("b")
    found = from_kueue(text, tmp_path / "q.yaml", notes)
    assert (found["a"].namespaces, found["b"].namespaces) == (("team",), ())
    assert [line for line in notes.lines() if "namespace team stays with Tenant a" in line]


def test_cohorts_in_a_circle_are_refused(tmp_path: Path) -> None:
    circle = "".join(
        "---\napiVersion: kueue.x-k8s.io/v1beta1\nkind: Cohort\n"
        f"metadata: {{name: {name}}}\nspec: {{parentName: {parent}}}\n"
        for name, parent in (("a", "b"), ("b", "a"))
    )
    with pytest.raises(InvalidInput, match="a, b are parents of each other"):
        from_kueue(circle, tmp_path / "q.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: [", "is not YAML"),
        ("- 1", "not a Kubernetes object"),
        ("a: 1", "without kind"),
        ("kind: ClusterQueue", "without a name"),
        (queue("a", "{" + flavor("t4", "nominalQuota: many") + "}"), "'many' is not a quantity"),
    ],
)
def test_invalid_objects_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_kueue(text, tmp_path / "q.yaml")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[" * 3000 + "]" * 3000, "q.yaml is nested too deeply"),
        ("9" * 5000, "q.yaml, line 5: '9{40}' cannot be read as int"),
        ("!!int abc", "line 5: 'abc' cannot be read as int"),
        ("!!float abc", "line 5: 'abc' cannot be read as float"),
        ("!!bool abc", "line 5: 'abc' cannot be read as bool"),
        ("!!timestamp abc", "line 5: 'abc' cannot be read as timestamp"),
        (".inf", "q.yaml has a value that JSON cannot express"),
        ("&a [*a]", "q.yaml has too many YAML aliases"),
        ("\0", "q.yaml is not YAML: special characters are not allowed"),
        ("5", "a field of another type than in the API of Kueue"),
    ],
)
def test_values_that_cannot_be_read_are_refused(tmp_path: Path, value: str, message: str) -> None:
    path = tmp_path / "q.yaml"
    path.write_text(queue("a", value))
    with pytest.raises(InvalidInput, match=message):
        convert_kueue([path], MANAGED)


def test_values_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    (tmp_path / "q.yaml").write_text(queue("a", "{cohort: 2026-13-45, 1: 12:30}"))
    (found,) = read_objects([tmp_path / "q.yaml"])
    assert found["spec"] == {"cohort": "2026-13-45", "1": "12:30"}


def test_a_volcano_queue_becomes_a_tenant() -> None:
    notes = Notes()
    objects = read_objects([EXAMPLES / "volcano.yaml"])
    found = tenants(volcano.convert(objects, "h100", managed_test(MANAGED), notes))
    assert set(found) == {"research", "vision"}
    assert (found["research"].parent, found["research"].weight) == (None, 3)
    assert found["research"].quotas == {"h100": Quota({GPU: 48}, {GPU: 64})}
    assert (found["vision"].parent, found["vision"].namespaces) == ("research", ("vision-train",))
    assert found["vision"].quotas == {"h100": Quota({GPU: 8}, {})}
    assert [line for line in notes.lines() if line.startswith("Queue vision: reclaimable")]
    assert not [line for line in notes.lines() if "research: it names no namespaces" in line]


def test_the_default_queue_of_volcano_is_the_tenant_of_unmapped_namespaces(tmp_path: Path) -> None:
    path, notes = tmp_path / "q.yaml", Notes()
    path.write_text(
        "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: default}\n"
        "spec: {parent: root, weight: 3}\n"
    )
    found = tenants(volcano.convert(read_objects([path]), "h100", managed_test(MANAGED), notes))
    assert (found["default"].weight, found["default"].parent) == (3, None)
    assert [line for line in notes.lines() if "namespaces without a Tenant" in line]


def test_no_other_queue_becomes_the_tenant_of_unmapped_namespaces(tmp_path: Path) -> None:
    text = queue("default", "{cohort: all}")
    assert set(from_kueue(text, tmp_path / "q.yaml")) == {"all", "clusterqueue-default"}


def test_an_account_becomes_a_tenant_with_its_users() -> None:
    found = from_slurm((EXAMPLES / "accounts.cfg").read_text())
    vision = found["vision-lab"]
    assert next(iter(found)) == "research"
    assert (found["research"].weight, found["research"].parent) == (60, None)
    assert found["research"].quotas == {"default": Quota({}, {GPU: 48})}
    assert (vision.parent, vision.weight) == ("research", 2)
    assert vision.quotas == {"a100": Quota({}, {GPU: 16})}
    assert vision.user_weights == {"alice": 3, "bob": 1}


def test_settings_of_slurm_without_an_equivalent_are_named() -> None:
    notes = Notes()
    from_slurm((EXAMPLES / "accounts.cfg").read_text(), notes)
    lines = notes.lines()
    assert "User alice, bob: MaxJobs has no equivalent." in lines
    assert "Account language: GrpWall has no equivalent." in lines
    assert "User carol: QOS has no equivalent." in lines
    assert "User bob: Fairshare=parent has no equivalent; the weight is 1." in lines
    assert "Account vision_lab: the Tenant is named vision-lab." in lines
    assert [line for line in lines if "  " in line] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Account - 'a'\nParent - 'b'\n", "a.cfg:2: Parent b has no Account line"),
        ("Account 'a'\n", "a.cfg:1: .* is no line of sacctmgr dump"),
        ("Account - 'a':Fairshare=much\n", "a.cfg:1: Fairshare: 'much'"),
        ("Cluster - 'tux'\n", "has no Account line"),
    ],
)
def test_invalid_dumps_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_slurm(text)


@pytest.mark.parametrize(
    ("amount", "written"),
    [("2", 2), ("0.5", "500m"), ("1000.5", "1000500m"), ("123456.7", "123456700m")],
)
def test_amounts_are_quantities_of_kubernetes(amount: str, written: int | str) -> None:
    assert format_quantity(Fraction(amount)) == written
