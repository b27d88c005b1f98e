"""The kubectl plugin as one file: built once, then run by every Python that is installed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from plugin import build

NAMES = [f"python3.{minor}" for minor in range(10, 16)]

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "c",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
}
"""Nothing listens at this address."""


def interpreters() -> list[str]:
    """Return this Python, and one of every other version on PATH or beside it."""
    folders = Path(sys.base_prefix).parent.glob("3.*/bin")
    places = os.pathsep.join((*map(str, folders), os.environ["PATH"]))
    found = [shutil.which(name, path=places) for name in NAMES]
    return [sys.executable, *(each for each in found if each and _works(each))]


def _works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build all files."""
    folder = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "DIST", folder)
        patch.setenv("SOURCE", "https://example.com/fairgate")
        build.main()
    return folder / build.NAME


def run(plugin: Path, python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SHIV_ROOT": str(plugin.parent / "shiv"), "COLUMNS": "80"}
    environment.pop("PYTHONPATH", None)
    command = [python, str(plugin), *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize("python", interpreters())
def test_it_runs_on_every_python(plugin: Path, python: str) -> None:
    shown = run(plugin, python, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "kubectl fairgate" in shown.stdout
    assert "  [POD|KIND/NAME]  A held pod" in run(plugin, python, "why", "--help").stdout
    version = tomllib.loads((build.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(plugin, python, "--version").stdout == f"kubectl-fairgate {version}\n"
    kubeconfig = plugin.parent / "config"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    asked = run(plugin, python, "why", "p", "--kubeconfig", str(kubeconfig))
    assert asked.returncode == 3, asked.stderr
    assert asked.stderr.startswith("fairgate: ")


def test_a_request_loads_no_models_of_kubernetes_and_not_rich(plugin: Path) -> None:
    kubeconfig = plugin.parent / "config-of-imports"
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    environment = {**os.environ, "SHIV_ROOT": str(plugin.parent / "shiv")}
    words = [sys.executable, "-X", "importtime", str(plugin), "why", "p"]
    words += ["--kubeconfig", str(kubeconfig)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kubernetes.config.kube_config" in loaded
    assert not [each for each in loaded if each.startswith(("kubernetes.client.models.", "rich"))]


def test_plugin_contains_no_server_code_and_no_compiled_files(plugin: Path) -> None:
    with zipfile.ZipFile(plugin) as archive:
        names = archive.namelist()
    own = {Path(name).parts[2] for name in names if name.startswith("site-packages/app/")}
    assert own == {"__init__.py", "core", "kubectl", "terminal"}
    packages = {Path(name).parts[1] for name in names if name.startswith("site-packages/")}
    assert not packages & {"fastapi", "uvicorn", "redis", "msgspec", "cryptography"}
    assert not packages & {"aiohttp", "tzdata", "pygments"}, "nothing in the plugin imports them"
    assert not [name for name in names if name.endswith((".so", ".pyd"))]


def test_the_manifest_describes_the_archive(plugin: Path) -> None:
    manifest = yaml.safe_load((plugin.parent / "fairgate.yaml").read_text())
    (archive,) = plugin.parent.glob("*.tar.gz")
    for platform in manifest["spec"]["platforms"]:
        assert platform["uri"].startswith("https://example.com/fairgate/releases/download/v")
        assert platform["uri"].endswith(archive.name)
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as packed:
        modes = {each.name: each.mode for each in packed.getmembers()}
    assert modes == {build.NAME: 0o755, build.COMPLETION: 0o755, "LICENSE": 0o644}


def test_the_completion_answers_in_the_form_of_cobra(plugin: Path) -> None:
    commands = plugin.parent / "commands"
    commands.mkdir()
    shutil.copy(build.HERE / build.COMPLETION, commands)
    (commands / build.NAME).symlink_to(plugin)
    environment = {**os.environ, "SHIV_ROOT": str(plugin.parent / "shiv")}
    environment["PATH"] = f"{commands}:{Path(sys.executable).parent}:{environment['PATH']}"
    told = subprocess.run(
        [str(commands / build.COMPLETION), "wei"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert told.stdout.splitlines()[0].split("\t")[0] == "weights"
    assert told.stdout.splitlines()[-1].startswith(":")
