"""The credentials of a command: found and merged as kubectl does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InvalidSettings
from app.core.kubeconfig import KubeconfigOptions
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


def named(path: Path | str, **more: Any) -> KubeconfigOptions:
    return KubeconfigOptions(str(path), **more)


NOT_NAMED = KubeconfigOptions()


def test_the_file_that_is_named_wins(tmp_path: Path) -> None:
    one, other = named(kubeconfig(tmp_path / "a")), named(kubeconfig(tmp_path / "b", "other"))
    environment = {"KUBECONFIG": other.kubeconfig}
    found = kubeconfig_files.find_caller(one, environment)
    assert found == kubeconfig_files.Caller(one, "team-a")
    found = kubeconfig_files.find_caller(NOT_NAMED, environment)
    assert found == kubeconfig_files.Caller(other, "other")


def test_without_any_the_usual_file_is_used(tmp_path: Path) -> None:
    usual = kubeconfig(tmp_path / ".kube" / "config", None)
    found = kubeconfig_files.find_caller(NOT_NAMED, {"HOME": str(tmp_path)})
    assert found == kubeconfig_files.Caller(named(usual), "default")


async def test_files_that_do_not_exist_are_left_out_of_a_list(tmp_path: Path) -> None:
    there = kubeconfig(tmp_path / "there", token="abc")
    listed = f"{tmp_path / 'gone'}:{there}"
    assert kubeconfig_files.find_caller(NOT_NAMED, {"KUBECONFIG": listed}).namespace == "team-a"
    assert (await kubeconfig_files.load_api_server(named(listed))).token.value() == "Bearer abc"


async def test_files_of_a_list_are_merged_and_the_first_entry_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    context = {"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "team-b"}}
    first.write_text(json.dumps({"current-context": "y", "contexts": [context]}))
    kubeconfig(second, token="abc")
    listed = f"{first}:{second}"
    assert kubeconfig_files.find_caller(NOT_NAMED, {"KUBECONFIG": listed}).namespace == "team-b"
    server = await kubeconfig_files.load_api_server(named(listed))
    assert (server.url, server.token.value()) == ("https://127.0.0.1:1", "Bearer abc")


async def test_a_token_file_is_next_to_the_kubeconfig_that_names_it(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "other" / "b"
    first.write_text(json.dumps({"current-context": "x"}))
    kubeconfig(second, tokenFile="token")
    (second.parent / "token").write_text("abc")
    assert (
        await kubeconfig_files.load_api_server(named(f"{first}:{second}"))
    ).token.value() == "Bearer abc"


async def test_a_user_may_act_as_another_user(tmp_path: Path) -> None:
    extra = {"example.com/team": ["a", "b"]}
    user = {"token": "t", "as": "bob", "as-groups": ["g", "h"], "as-user-extra": extra}
    server = await kubeconfig_files.load_api_server(named(kubeconfig(tmp_path / "a", **user)))
    assert server.headers == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Extra-example.com%2Fteam", "a"),
        ("Impersonate-Extra-example.com%2Fteam", "b"),
    )


async def test_impersonation_of_the_command_line_replaces_that_of_the_kubeconfig(
    tmp_path: Path,
) -> None:
    file = kubeconfig(tmp_path / "a", **{"token": "t", "as": "bob", "as-groups": ["g"]})
    server = await kubeconfig_files.load_api_server(named(file, as_user="eve", as_groups=("h",)))
    assert server.headers == (("Impersonate-User", "eve"), ("Impersonate-Group", "h"))


def test_a_group_without_a_user_is_refused(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path / "a", **{"as-groups": ["g"]})
    with pytest.raises(InvalidSettings, match="a cannot be used: groups are impersonated only"):
        kubeconfig_files.find_caller(named(file), {})
    file = kubeconfig(tmp_path / "b")
    with pytest.raises(InvalidSettings, match=r"^--as-group needs a user to act as"):
        kubeconfig_files.find_caller(named(file, as_groups=("g",)), {})


def test_a_login_that_no_program_supports_any_more_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="auth-provider azure"):
        kubeconfig_files.find_caller(
            named(kubeconfig(tmp_path / "a", **{"auth-provider": {"name": "azure"}})), {}
        )


def test_invalid_kubeconfig_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[]")
    with pytest.raises(InvalidSettings, match="cannot be used"):
        kubeconfig_files.find_caller(named(tmp_path / "a"), {})


@pytest.mark.parametrize("answer", ["exit 1", "echo nonsense"])
async def test_plugin_without_a_credential_is_reported(tmp_path: Path, answer: str) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}
    file = kubeconfig(tmp_path / "a", exec=plugin | {"args": ["-c", answer]})
    with pytest.raises(InvalidSettings, match="its plugin sh gave neither token nor certificate"):
        await kubeconfig_files.load_api_server(named(file))


async def test_token_of_a_plugin_is_used(tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    said = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "abc"}}
    plugin = {"apiVersion": version, "command": "echo", "args": [json.dumps(said)]}
    server = await kubeconfig_files.load_api_server(named(kubeconfig(tmp_path / "a", exec=plugin)))
    assert server.token.value() == "Bearer abc"
