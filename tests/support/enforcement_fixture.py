"""Harmless objects for the watchdog to restore on a real API server, and the watchdog itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.core.errors import ClusterRefused
from app.kube.client import Client
from app.kube.enforcement_apply import OWNERS
from app.kube.enforcement_spec import BINDING, CONFIG_MAP, PATHS, Object, Ref, is_denying
from app.kube.enforcement_timing import WatchdogTiming
from app.kube.enforcement_watchdog import Watchdog
from app.kube.event_recorder import EnforcementAlarm
from tests.fakes.fake_enforcement_metrics import Guarded

API = "admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
POLICY = "ValidatingAdmissionPolicy"
QUICK = WatchdogTiming(
    poll=0.05,
    sweep=0.3,
    proof_interval=0.1,
    backoff=(0.05, 0.5),
    restore_pause=0.05,
    effect_delay=0.0,
)
NOWHERE = {"matchLabels": {"no-such-label": "anywhere"}}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}

Edit = Callable[[Object], object]


async def reached() -> str:
    """Return "": the API server reaches a replica."""
    return ""


async def no_other(ca_pem: bytes) -> bool:
    """Return False: no other replica has published a CA."""
    return False


def hook(name: str, **fields: Any) -> Object:
    """Return a webhook that matches no request; most fields have defaults."""
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/admit"},
        "namespaceSelector": NOWHERE,
        "rules": [{**RULE, "resources": ["configmaps"]}],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "matchConditions": [{"name": "once", "expression": "request.dryRun"}],
        **fields,
    }


def documents(name: str) -> list[Object]:
    """Return one object of each restored kind."""

    def document(kind: str, **contents: Any) -> Object:
        meta = {"name": name, "labels": {"app.kubernetes.io/part-of": "fairgate"}}
        return {"apiVersion": API, "kind": kind, "metadata": meta, **contents}

    hooks = [hook("a.fairgate.io"), hook("b.fairgate.io")]
    constraints = {
        "namespaceSelector": NOWHERE,
        "resourceRules": [{**RULE, "resources": ["configmaps"]}],
    }
    rule = {"expression": "object.metadata.name != 'forbidden'", "message": "no"}
    return [
        document(MUTATING, webhooks=hooks),
        document(VALIDATING, webhooks=[hook("a.fairgate.io", failurePolicy="Fail")]),
        document(POLICY, spec={"matchConstraints": constraints, "validations": [rule]}),
        document(BINDING, spec={"policyName": name, "validationActions": ["Deny"]}),
    ]


def ref(document: Object) -> Ref:
    return Ref(document["kind"], document["metadata"]["name"])


def certificate(kubeconfig: Path) -> bytes:
    """Return a certificate. The API server accepts any valid one."""
    config = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    return ssl.get_server_certificate((str(server.hostname), server.port or 443)).encode()


class Counting:
    """A client that records its requests."""

    def __init__(self, client: Client) -> None:
        self.asked: list[tuple[str, str]] = []
        self.dry_runs: list[str] = []
        self._client = client

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.asked if method != "GET"]

    def looks(self, path: str) -> int:
        return self.asked.count(("GET", path))

    async def request(self, method: str, path: str, *, query: Any = (), **more: Any) -> bytes:
        if ("dryRun", "All") in query:
            self.dry_runs.append(path)
        else:
            self.asked.append((method, path))
        return await self._client.request(method, path, query=query, **more)

    def stream(self, *args: Any, **more: Any) -> Any:
        return self._client.stream(*args, **more)


class Kept:
    """Objects in an API server, their ConfigMap, and a watchdog."""

    def __init__(self, client: Client, ca: bytes) -> None:
        self.client = client
        self.name = f"kept-{uuid.uuid4().hex[:8]}"
        self.ca = ca
        self.observes: bool | None = False
        self.guarded = Guarded()
        self.marks: dict[str, str] = {}
        self.documents: list[Object] = documents(self.name)

    @property
    def map_path(self) -> str:
        return f"/api/v1/namespaces/{self.name}/configmaps/{CONFIG_MAP}"

    @property
    def role_path(self) -> str:
        return f"{OWNERS}/{self.name}"

    def role(self) -> Object:
        """Return the ClusterRole that stands for the installation."""
        group = "rbac.authorization.k8s.io"
        named = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": self.name},
        }
        return {**named, "rules": []}

    def ref(self, kind: str) -> Ref:
        return Ref(kind, self.name)

    def path(self, kind: str) -> str:
        return self.map_path if kind == "ConfigMap" else self.ref(kind).path

    async def get(self, path: str) -> Object | None:
        try:
            found: Object = json.loads(await self.client.request("GET", path))
        except ClusterRefused as error:
            if error.status != 404:
                raise
            return None
        return found

    async def find(self, kind: str) -> Object:
        found = await self.get(self.path(kind))
        assert found is not None
        return found

    def data(self) -> dict[str, str]:
        """Return the content of the ConfigMap: webhooks under one key, the rest as a stream."""
        hooks, rest = self.documents[:2], self.documents[2:]
        return {"hooks": yaml.safe_dump_all(hooks), "policies": yaml.safe_dump_all(rest)}

    async def write(self) -> None:
        """Write the ConfigMap."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "annotations": self.marks},
            "data": self.data(),
        }
        await apply(self.client, self.map_path, body)

    async def install(self) -> None:
        """Write the namespace, the ClusterRole and the ConfigMap, as helm does."""
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        await apply(self.client, f"/api/v1/namespaces/{self.name}", space)
        await apply(self.client, self.role_path, self.role())
        await self.write()

    @asynccontextmanager
    async def keeping(
        self, client: Any = None, pace: WatchdogTiming = QUICK, **more: Any
    ) -> AsyncIterator[Watchdog]:
        """Run a watchdog until the end of the block. By default no other replica has another CA."""
        usual: dict[str, Any] = {
            "ca": lambda: self.ca,
            "unreachable_reason": reached,
            "default_mode": lambda mode: None,
            "is_ours": no_other,
            "then": lambda: None,
        }
        watchdog = Watchdog(
            client or self.client,
            self.name,
            owner=self.name,
            read_observing=lambda: self.observes,
            meters=self.guarded,
            alarm=EnforcementAlarm(self.client, self.name),
            timing=pace,
            **(usual | more),
        )
        running = asyncio.create_task(watchdog.run())
        try:
            yield watchdog
            assert not running.done()
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def settle(self) -> dict[str, Object]:
        """Wait until every object is in force; return all objects."""

        async def done() -> bool:
            found = {kind: await self.get(self.path(kind)) for kind in PATHS}
            denies = self.observes is not True
            return all(found.values()) and all(
                is_denying(found[kind] or {}) is denies for kind in (MUTATING, VALIDATING, BINDING)
            )

        await until(done)
        return {kind: await self.find(kind) for kind in (*PATHS, "ConfigMap")}

    async def edit(self, kind: str, change: Edit) -> None:
        """Change an object as a user with kubectl would."""
        live = await self.find(kind)
        change(live)
        query = [("fieldManager", "kubectl-edit")]
        await self.client.request("PUT", self.path(kind), query=query, body=live)

    async def remove(self) -> None:
        """Delete everything."""
        paths = [self.path(kind) for kind in PATHS]
        paths += [self.role_path, f"/api/v1/namespaces/{self.name}"]
        for path in paths:
            with contextlib.suppress(ClusterRefused):
                await self.client.request("DELETE", path)


async def apply(client: Client, path: str, body: Object) -> None:
    """Apply an object on the server's side, as helm does."""
    query = [("fieldManager", "helm"), ("force", "true")]
    await client.request(
        "PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml"
    )


async def until(true: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not await true():
            await asyncio.sleep(0.02)


def contents(item: Object | None) -> Any:
    """Return the part of an object that comparisons use."""
    if item is None:
        return None
    meta = item["metadata"]
    return (
        {key: meta.get(key) for key in ("name", "labels", "annotations")},
        {key: item.get(key) for key in ("webhooks", "spec", "data")},
    )
