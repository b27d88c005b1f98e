"""The credentials of a command: found as kubectl does; unsupported forms are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InvalidSettings
from app.kube import kubeconfig as kubeconfig_files


def kubeconfig(path: Path, namespace: str | None = "team-a", **user: Any) -> Path:
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def test_the_file_that_is_named_wins(tmp_path: Path) -> None:
    named, other = kubeconfig(tmp_path / "a"), kubeconfig(tmp_path / "b", "other")
    found = kubeconfig_files.find(named, {"KUBECONFIG": str(other)})
    assert found == kubeconfig_files.Caller(named, "team-a")
    assert kubeconfig_files.find(None, {"KUBECONFIG": str(other)}) == kubeconfig_files.Caller(
        other, "other"
    )


def test_without_any_the_usual_file_is_used(tmp_path: Path) -> None:
    usual = kubeconfig(tmp_path / ".kube" / "config", None)
    assert kubeconfig_files.find(None, {"HOME": str(tmp_path)}) == kubeconfig_files.Caller(
        usual, "default"
    )


def test_a_list_with_one_file_that_exists_is_that_file(tmp_path: Path) -> None:
    there = kubeconfig(tmp_path / "there")
    listed = f"{tmp_path / 'gone'}:{there}"
    assert kubeconfig_files.find(None, {"KUBECONFIG": listed}).kubeconfig == there


def test_a_list_of_files_is_refused_and_not_half_read(tmp_path: Path) -> None:
    one, two = kubeconfig(tmp_path / "a"), kubeconfig(tmp_path / "b")
    with pytest.raises(InvalidSettings, match="several files"):
        kubeconfig_files.find(None, {"KUBECONFIG": f"{one}:{two}"})


@pytest.mark.parametrize(
    ("user", "sentence"),
    [
        ({"as": "somebody"}, "impersonates another"),
        ({"token": "t", "as-groups": ["g"]}, "impersonates another"),
        ({"auth-provider": {"name": "azure"}}, "auth-provider azure"),
    ],
)
def test_what_would_make_us_somebody_else_is_refused(
    tmp_path: Path, user: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidSettings, match=sentence):
        kubeconfig_files.find(kubeconfig(tmp_path / "a", **user), {})


def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[]")
    with pytest.raises(InvalidSettings, match="cannot be used"):
        kubeconfig_files.find(tmp_path / "a", {})


@pytest.mark.parametrize("answer", ["exit 1", "echo nonsense"])
async def test_a_plugin_that_gives_nothing_is_not_passed_over(tmp_path: Path, answer: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}
    file = kubeconfig(tmp_path / "a", exec=plugin | {"args": ["-c", answer]})
    with pytest.raises(InvalidSettings, match="its plugin sh gave neither token nor certificate"):
        await kubeconfig_files.load(file)


async def test_a_plugin_that_gives_a_token_is_believed(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "abc"}}
    plugin = {"apiVersion": version, "command": "echo", "args": [json.dumps(said)]}
    server = await kubeconfig_files.load(kubeconfig(tmp_path / "a", exec=plugin))
    assert server.token.value() == "Bearer abc"
