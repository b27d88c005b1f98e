"""The Dockerfile, its build context and what it leaves out agree with the code and the chart."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest

from tests.meta.test_requirements_lock import RUNTIME, locked

ROOT = Path(__file__).parents[2]
OPTIONAL = {"matplotlib", "mcp", "mcp_types"}
"""Extras. The module that imports one asks for it in a sentence if it is missing."""

GENERATED = ("kubernetes.client.api", "kubernetes.aio.client.api")
"""The parts of the client library that the image does not have."""


def stages() -> list[list[str]]:
    """Return the instructions of each stage."""
    text = (ROOT / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("FROM "):
            found.append([])
        if line and found:
            found[-1].append(" ".join(line.split()))
    return found


def copied() -> set[str]:
    """Return the files and folders that the Dockerfile takes from the repository."""
    lines = [line.split()[1:-1] for stage in stages() for line in stage if line.startswith("COPY ")]
    return {source for line in lines if not line[0].startswith("--from") for source in line}


def imported() -> Iterator[tuple[str, str]]:
    """Yield each module of another project that app/ imports, with the file that does."""
    for file in sorted((ROOT / "app").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in (each.split(".")[0] for each in names):
                if name not in sys.stdlib_module_names and name != "app":
                    yield name, str(file.relative_to(ROOT))


def carried() -> set[str]:
    """Return the modules of the packages in the runtime lock."""
    found: set[str] = set()
    for pin in locked(RUNTIME):
        with suppress(metadata.PackageNotFoundError):  # only other versions of Python need it
            files = metadata.distribution(pin.name).files or ()
            found |= {file.parts[0].partition(".")[0] for file in files}
    return found


def test_every_import_is_in_the_runtime_lock() -> None:
    seen, known = set(imported()), carried() | OPTIONAL
    missing = [f"{file} imports {name}" for name, file in sorted(seen) if name not in known]
    assert {"kubernetes", "redis", "fastapi"} <= {name for name, _ in seen}
    assert missing == []


def test_every_role_runs_as_the_user_that_the_chart_demands() -> None:
    pods = (ROOT / "charts/fairgate/templates/_pods.tpl").read_text()
    assert set(re.findall(r"runAs(?:User|Group): (\d+)", pods)) == {"65532"}
    assert "USER 65532:65532" in stages()[-1]


def test_final_stage_has_no_run_instruction_and_needs_no_shell() -> None:
    final = stages()[-1]
    assert [line for line in final if line.startswith("RUN")] == []
    commands = [line.split(" ", 1)[1] for line in final if re.match("ENTRYPOINT|CMD", line)]
    assert [json.loads(each) for each in commands] == [["fairgate"], ["serve"]]


def test_build_context_contains_exactly_the_copied_files() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied()
    assert [name for name in sorted(copied()) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("option", ["--require-hashes", "--only-binary :all:"])
def test_packages_are_installed_from_wheels_by_hash(option: str) -> None:
    run = [line for stage in stages() for line in stage if f"-r {RUNTIME}" in line]
    assert len(run) == 1
    assert option in run[0].split("install")[-1]


def test_the_build_takes_setuptools_with_its_hashes_from_the_development_lock(
    tmp_path: Path,
) -> None:
    command = re.search(r"sed -n '[^']+' requirements.lock", " ".join(stages()[0]))
    assert command is not None
    ran = subprocess.run(
        ["sh", "-c", command[0]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    pin, *hashes = ran.stdout.replace("\\\n", " ").split()
    assert pin.startswith("setuptools==")
    assert len(hashes) > 1
    assert all(each.startswith("--hash=sha256:") for each in hashes)


def test_the_removed_parts_of_the_client_library_are_those_that_exist() -> None:
    removed = re.findall(r"site-packages/(kubernetes/\S+)", " ".join(stages()[0]))
    assert {each.replace("/", ".") for each in removed} == set(GENERATED)
    folder = Path(str(metadata.distribution("kubernetes").locate_file("")))
    assert all((folder / each).is_dir() for each in removed)


def test_the_image_has_exactly_the_cel_extensions_that_are_imported() -> None:
    removed = set(re.findall(r"cel_expr_python/ext/(\w+)\.", " ".join(stages()[0])))
    text = (ROOT / "app/kube/device_selectors.py").read_text()
    [names] = re.findall(r"from cel_expr_python.ext import (.+)", text)
    package = Path(str(metadata.distribution("cel-expr-python").locate_file("cel_expr_python")))
    present = {file.name.split(".")[0] for file in (package / "ext").glob("*.so")}
    assert removed
    assert removed == present - set(names.split(", "))


def test_fairgate_works_without_the_removed_parts_of_the_client_library(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(document))
    modules = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for file in sorted((ROOT / "app").rglob("*.py"))
        if file.stem not in ("__main__", "__init__")
    ]
    script = f"""
import asyncio, importlib, sys

class Removed:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({GENERATED!r}) and not name.endswith(("api_client", "api_response")):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Removed())
for name in {modules!r}:
    importlib.import_module(name)
from app.kube.client import Client
from app.core.kubeconfig import KubeconfigOptions
from app.kubectl import connect
asyncio.run(Client.connect({str(kubeconfig)!r}))
connect.kubeconfig_client(KubeconfigOptions({str(kubeconfig)!r}))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
