"""Resources that attackers control: their own namespace, rights beyond `edit`, and a webhook."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from app.tls.certificate_authority import new_authority, write_private
from tests.e2e.attacks.attack_cluster import AttackEnvironment, path
from tests.support.cluster_driver import GATE, Object, Stage, gates, name_of, until
from tests.support.personas import Person, person

FIRST = {"everything": "P", "policies": "P", "webhook": "W", "killed": "P"}
"""The layer that refuses requests seen by both the policies and the webhook. Policies run first."""


def only(*modes: str) -> pytest.MarkDecorator:
    """Mark a test that applies only to these modes."""
    return pytest.mark.parametrize("env", modes, indirect=True, scope="session")


@dataclass
class Yard:
    """An empty namespace that belongs to the attacker."""

    env: AttackEnvironment
    stage: Stage
    namespace: str

    def make(self, body: Object, user: str = "mallory", who: Person | None = None) -> str | None:
        """Create a pod as the webhook would complete it, by hand if there is no webhook.

        Return the message of the refusal, or None if it was accepted.
        """
        if self.env.mode == "policies":
            body = self.env.stamped(body, user, self.namespace)
        return (who or self.env.mallory).refused("POST", path(self.namespace), body)

    @property
    def pods(self) -> list[Object]:
        """All pods of the namespace."""
        return list(self.env.admin.get(path(self.namespace))["items"])

    def released(self) -> set[str]:
        """Return the names of the released pods."""
        return {name_of(p) for p in self.pods if GATE not in gates(p)}

    def held(self) -> set[str]:
        """Return the names of the held pods."""
        return {name_of(p) for p in self.pods if GATE in gates(p)}

    def told(self, name: str, reason: str, words: str) -> bool:
        """Return whether a pod has an event with this reason and these words."""
        events = f"/api/v1/namespaces/{self.namespace}/events"
        return any(
            (event["involvedObject"]["name"], event["reason"]) == (name, reason)
            and words in event["message"]
            for event in self.env.admin.get(events)["items"]
        )

    def used(self, tenant: str = "") -> float:
        """Return the number of GPUs charged to a tenant, by default this namespace's tenant."""
        label = f'tenant="{tenant or "ns." + self.namespace}"'
        return self.stage.metric("controller", "fairgate_used_resources", label)


def yard(env: AttackEnvironment, stage: Stage, *users: str) -> Yard:
    """Return a new namespace that Mallory, or these users, may edit."""
    namespace = stage.namespace(env.name("yard"))
    users = users or ("mallory",)
    allow(env, namespace, "edit", *users)
    known = {"mallory": env.mallory, "bob": env.bob}
    for who in (known[user] for user in users if user in known):
        until("RBAC lets them in", lambda w=who: w.refused("GET", path(namespace), None) is None)  # type: ignore[misc]
    return Yard(env, stage, namespace)


def allow(env: AttackEnvironment, namespace: str, role: str, *users: str) -> None:
    """Bind a ClusterRole to users in a namespace; return after it works and pods can be created."""
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": env.name("grant")},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user} for user in users],
    }
    where = f"/apis/{group}/v1/namespaces/{namespace}/rolebindings"
    env.admin.call("POST", where, binding)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    until("pods can be made", lambda: env.admin.refused("GET", account, None) is None)


def grant(env: AttackEnvironment, stage: Stage, user: str, verbs: str, *resources: str) -> None:
    """Grant a user these verbs cluster-wide, like the role of an installed product."""
    name = env.name("extra")
    what = ("--verb=" + verbs, "--resource=" + ",".join(resources))
    env.cluster.kubectl("create", "clusterrole", name, *what)
    to = (f"--clusterrole={name}", f"--user={user}")
    env.cluster.kubectl("create", "clusterrolebinding", name, *to)
    stage.objects += [("clusterrolebinding", name), ("clusterrole", name)]


def armed(env: AttackEnvironment, stage: Stage, *resources: str) -> Person:
    """Return a user that may edit the red namespace and write these resources."""
    user = env.name("armed")
    allow(env, "red", "edit", user)
    grant(env, stage, user, "get,patch,update,create", *resources)
    return person(env.cluster, user)


@contextlib.contextmanager
def late_webhook(env: AttackEnvironment, folder: Path, label: str) -> Iterator[None]:
    """Register a webhook, called after Fairgate's, that adds a GPU to pods with a label."""
    now = datetime.now(UTC)
    authority = new_authority("another-webhook", now, 1)
    issued = authority.issue(
        "another", names=["127.0.0.1"], server=True, client=False, now=now, days=1
    )
    for name, content in (("late.crt", issued.certificate_pem), ("late.key", issued.key_pem)):
        write_private(folder / name, content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "late.crt", folder / "late.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _AddsAGpu)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    ca = base64.b64encode(authority.certificate_pem).decode()
    url = f"https://127.0.0.1:{server.server_address[1]}/"
    name = "zz-another"
    try:
        env.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_hooks(name, url, ca, label)))
        yield
    finally:
        env.cluster.kubectl("delete", "mutatingwebhookconfiguration", name, "--ignore-not-found")
        server.shutdown()
        thread.join()
        server.server_close()


def _hooks(name: str, url: str, ca: str, label: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "adds.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"url": url, "caBundle": ca},
                "objectSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ],
            }
        ],
    }


class _AddsAGpu(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["content-length"])))
        limits = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
        patch = [{"op": "add", "path": "/spec/containers/0/resources", "value": limits}]
        response = {
            "uid": review["request"]["uid"],
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }
        answer = json.dumps({**review, "request": None, "response": response}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""
