"""The no-op webhook in Go that Fairgate's webhook is compared with.

It is built once and served over TLS for some namespaces. It ends with the cluster's processes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.core.errors import ToolMissing
from app.devcluster.go_build import cache_folder
from app.devcluster.processes import Processes, Program
from app.devcluster.readiness import free_ports, wait_until
from app.tls.certificate_authority import new_authority, write_private

SOURCE = Path(__file__).parent / "noop"
GATE = "example.com/noop"
NAME = "noop-webhook"
READY_SECONDS = 10.0
BUILD_SECONDS = 300


def build() -> Path:
    """Return the program. Build it first if its sources have changed. Raises ToolMissing."""
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".go", ".mod"))
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    program = cache_folder() / digest.hexdigest()[:16] / "noop"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise ToolMissing(
            "The no-op webhook of the measures cannot be built without Go; "
            "install Go 1.26 or newer (go.dev/dl), or measure with --only releases or latency."
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent.parent, prefix="building-") as draft:
        made = Path(draft) / "noop"
        done = subprocess.run(
            [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(made), "."],
            cwd=SOURCE,
            env={**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ToolMissing(f"The no-op webhook could not be built; Go said:\n{done.stderr}")
        made.replace(program)
    return program


def start(folder: Path) -> dict[str, Any]:
    """Start it as a process of the cluster in this folder.

    Returns the `clientConfig` for a webhook configuration.
    """
    program = build()
    own = folder / "noop"
    own.mkdir(mode=0o700, exist_ok=True)
    now = datetime.now(UTC)
    authority = new_authority("noop webhook", now, days=1)
    issued = authority.issue(NAME, names=["127.0.0.1"], server=True, client=False, now=now, days=1)
    certificate, key = own / "tls.crt", own / "tls.key"
    write_private(certificate, issued.certificate_pem)
    write_private(key, issued.key_pem)
    [port] = free_ports(1)
    flags = {"listen": f"127.0.0.1:{port}", "cert": certificate, "key": key, "gate": GATE}
    argv = (str(program), *(f"-{flag}={value}" for flag, value in flags.items()))
    processes = Processes(folder)
    child = processes.start(Program(NAME, argv, {"PATH": os.defpath}))
    wait_until(
        {"the no-op webhook": lambda: _listens(port)},
        seconds=READY_SECONDS,
        check=lambda: processes.check([child]),
    )
    bundle = base64.b64encode(authority.certificate_pem).decode()
    return {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}


def configuration(
    name: str, client_config: dict[str, Any], namespace: str, conditions: list[dict[str, str]]
) -> dict[str, Any]:
    """Return the webhook configuration that calls it for new pods of one namespace.

    `conditions` are its matchConditions; empty means always.
    """
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace]}
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    webhook = {
        "name": f"{name}.example.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": client_config,
        "rules": [{**rule, "resources": ["pods"], "scope": "Namespaced"}],
        "namespaceSelector": {"matchExpressions": [only]},
        "matchConditions": conditions,
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "timeoutSeconds": 5,
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
