"""Builds the kubectl plugin as one file without server code, and its manifest for krew.

`python plugin/build.py` writes into dist/: `kubectl-fairgate`, an archive with it and its
completion, and `fairgate.yaml`. The environment variable SOURCE is the URL of the source.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "plugin"
DIST = ROOT / "dist"
NAME, COMPLETION = "kubectl-fairgate", "kubectl_complete-fairgate"
ENTRY = "app.kubectl.cli:main"
SOURCE = "https://github.com/OWNER/fairgate"
"""Used in the manifest if SOURCE is not set."""

PLATFORMS = ("linux", "darwin")
DESCRIPTION = (
    "Fairgate releases GPU pods of a shared cluster in fair order. This plugin shows why a pod\n"
    "waits, the queues, shares and usage, and sets weights. It needs Python 3.10 or newer.\n"
)


UNUSED = (
    *("aio", "dynamic", "informer", "leaderelection", "stream", "utils", "watch"),
    *("client/api", "client/apis", "client/models"),
)
"""Parts of the package kubernetes that read no kubeconfig. Their import takes most of the start."""

REDUCED = {
    "__init__.py": "",
    "client/__init__.py": "from kubernetes.client.configuration import Configuration\n",
    "client/models/__init__.py": "",
}
DEFERRED = {
    "config/kube_config.py": (
        ("import oauthlib.oauth2\n", ""),
        ("from requests_oauthlib import OAuth2Session\n", ""),
        ("from kubernetes.client import ApiClient, Configuration\n",
         "from kubernetes.client import Configuration\n"),
        ("    def _refresh_oidc(self, provider):\n",
         "    def _refresh_oidc(self, provider):\n"
         "        import oauthlib.oauth2\n"
         "        from kubernetes.client.api_client import ApiClient\n"
         "        from requests_oauthlib import OAuth2Session\n\n"),
    ),
    "client/rest.py": (
        ("from requests.utils import should_bypass_proxies\n", ""),
        ("        # https pool manager\n",
         "        if configuration.proxy:\n"
         "            from requests.utils import should_bypass_proxies\n"),
    ),
    "client/configuration.py": (
        ("import multiprocessing\n", ""),
        ("multiprocessing.cpu_count()", "(os.cpu_count() or 1)"),
    ),
}  # fmt: skip
"""Imports that few kubeconfigs need: logins by OIDC without a program, and proxies."""

NOTICE = "# Changed by Fairgate: only the modules that read a kubeconfig are here.\n"


def imported_modules(package: str) -> set[Path]:
    """Return the files of a package under app/, and of each module of app/ that these import."""
    found: set[Path] = set()
    queue = sorted((ROOT / package.replace(".", "/")).glob("*.py"))
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.add(path)
        queue += [
            each / "__init__.py" for each in path.parents if ROOT / "app" in (each, *each.parents)
        ]
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            for name in names:
                if name.split(".")[0] == "app":
                    stem = ROOT / name.replace(".", "/")
                    files = (stem.with_suffix(".py"), stem / "__init__.py")
                    queue += [each for each in files if each.is_file()]
    return found


def reduce_kubernetes(package: Path) -> None:
    """Remove the parts of the package kubernetes that the plugin does not use, and defer others."""
    for part in UNUSED:
        shutil.rmtree(package / part)
    for name, text in REDUCED.items():
        file = package / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(NOTICE + text)
    for name, changes in DEFERRED.items():
        file = package / name
        text = file.read_text()
        for old, new in changes:
            if text.count(old) != 1:
                raise ValueError(f"{file} has {old!r} {text.count(old)} times, not once")
            text = text.replace(old, new)
        file.write_text(NOTICE + text)


def build(version: str, folder: Path) -> Path:
    """Build the plugin from a temporary folder; return the file."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = ["--require-hashes", "--no-deps", "-r", str(HERE / "requirements.lock")]
    subprocess.run([*pip, *lock, "--no-compile", "--target", str(folder)], check=True)
    shutil.rmtree(folder / "bin", ignore_errors=True)
    reduce_kubernetes(folder / "kubernetes")
    # Compiled parts serve one version of Python. These packages also have them in pure Python.
    for compiled in folder.rglob("*.so"):
        compiled.unlink()
    for module in imported_modules("app.kubectl"):
        at = folder / module.relative_to(ROOT)
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, at)
    about = folder / f"fairgate-{version}.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: fairgate\nVersion: {version}\n")
    done = DIST / NAME
    options = ["--compressed", "--reproducible", "-p", "/usr/bin/env python3", "-e", ENTRY]
    target = ["--site-packages", str(folder), "-o", str(done)]
    subprocess.run([sys.executable, "-m", "shiv.cli", *options, *target], check=True)
    return done


def pack(version: str, plugin: Path) -> Path:
    """Pack the plugin, its completion and the licence. Equal contents give an equal archive."""
    done = DIST / f"{NAME}-{version}.tar.gz"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for path, mode in ((plugin, 0o755), (HERE / COMPLETION, 0o755), (ROOT / "LICENSE", 0o644)):
            about = tarfile.TarInfo(path.name)
            about.size, about.mode = path.stat().st_size, mode
            archive.addfile(about, io.BytesIO(path.read_bytes()))
    done.write_bytes(gzip.compress(plain.getvalue(), mtime=0))
    return done


def manifest(version: str, source: str, archive: Path) -> dict[str, object]:
    """Return the manifest of the plugin for krew."""
    platform = {
        "uri": f"{source}/releases/download/v{version}/{archive.name}",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "bin": NAME,
    }
    systems = [{"selector": {"matchLabels": {"os": each}}, **platform} for each in PLATFORMS]
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "fairgate"},
        "spec": {
            "version": f"v{version}",
            "homepage": source,
            "shortDescription": "See why GPU pods wait, and weigh tenants and users",
            "description": DESCRIPTION,
            "platforms": systems,
        },
    }


def main() -> None:
    """Write all three files."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    DIST.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plugin = build(version, Path(folder))
    archive = pack(version, plugin)
    written = manifest(version, os.environ.get("SOURCE") or SOURCE, archive)
    (DIST / "fairgate.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    size = plugin.stat().st_size / 2**20
    print(f"{DIST.name}/{plugin.name} ({size:.1f} MiB) is the plugin: put it on PATH.")
    print(f"{DIST.name}/{archive.name} and {DIST.name}/fairgate.yaml are for krew.")


if __name__ == "__main__":
    main()
