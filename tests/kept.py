"""A few harmless objects to keep in force on a real API server, and a watchdog that keeps them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.core.errors import ClusterRefused
from app.kube.alarm import Alarm
from app.kube.client import Client
from app.kube.enforcement import BINDING, CONFIG_MAP, PATHS, Object, Ref
from app.kube.watchdog import Pace, Watchdog
from tests.fakes.guard import Guarded

API = "admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"
POLICY = "ValidatingAdmissionPolicy"
QUICK = Pace(look=0.05, sweep=0.3, grace=0.0, again=(0.05, 0.5), breath=0.05)
NOWHERE = {"matchLabels": {"no-such-label": "anywhere"}}
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}

Edit = Callable[[Object], object]


def hook(name: str, **fields: Any) -> Object:
    """Return a webhook that is asked about nothing; most of it is left to defaults."""
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
    """Return one object of each kind that is kept."""

    def document(kind: str, **contents: Any) -> Object:
        labels = {"app.kubernetes.io/managed-by": "Helm"}
        meta = {"name": name, "labels": labels}
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
    """Return a certificate; any will do, but the API server insists that it is one."""
    config = yaml.safe_load(kubeconfig.read_text())
    server = urlsplit(config["clusters"][0]["cluster"]["server"])
    return ssl.get_server_certificate((str(server.hostname), server.port or 443)).encode()


class Counting:
    """A client that remembers what was asked of it."""

    def __init__(self, client: Client) -> None:
        self.asked: list[tuple[str, str]] = []
        self._client = client

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path in self.asked if method != "GET"]

    def looks(self, path: str) -> int:
        return self.asked.count(("GET", path))

    async def request(self, method: str, path: str, *, query: Any = (), **more: Any) -> bytes:
        if ("dryRun", "All") not in query:
            self.asked.append((method, path))
        return await self._client.request(method, path, query=query, **more)

    def stream(self, *args: Any, **more: Any) -> Any:
        return self._client.stream(*args, **more)


class Kept:
    """Objects in an API server, the ConfigMap they are written in, and who keeps them."""

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
        """Return what the ConfigMap says: webhooks under a key, all else as a stream."""
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

    async def install(self, what: Iterable[Object] | None = None) -> None:
        """Write the namespace, the ConfigMap, and the objects as helm does: without a CA."""
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}}
        await apply(self.client, f"/api/v1/namespaces/{self.name}", space)
        await self.write()
        for document in self.documents if what is None else what:
            await apply(self.client, ref(document).path, document)

    @asynccontextmanager
    async def keeping(
        self, client: Any = None, pace: Pace = QUICK, **more: Any
    ) -> AsyncIterator[Watchdog]:
        """Let a watchdog run."""
        watchdog = Watchdog(
            client or self.client,
            self.name,
            observing=lambda: self.observes,
            meters=self.guarded,
            alarm=Alarm(self.client, self.name),
            pace=pace,
            **({"ca": lambda: self.ca} | more),
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
        """Wait until every webhook has the CA; return all objects."""

        async def done() -> bool:
            found = [await self.get(self.path(kind)) for kind in (MUTATING, VALIDATING)]
            return all(
                each and all(hook["clientConfig"].get("caBundle") for hook in each["webhooks"])
                for each in found
            )

        await until(done)
        return {kind: await self.find(kind) for kind in (*PATHS, "ConfigMap")}

    async def edit(self, kind: str, change: Edit) -> None:
        """Change an object as somebody with kubectl would."""
        live = await self.find(kind)
        change(live)
        query = [("fieldManager", "kubectl-edit")]
        await self.client.request("PUT", self.path(kind), query=query, body=live)

    async def remove(self) -> None:
        """Delete everything."""
        paths = [self.path(kind) for kind in PATHS] + [f"/api/v1/namespaces/{self.name}"]
        for path in paths:
            with contextlib.suppress(ClusterRefused):
                await self.client.request("DELETE", path)


async def apply(client: Client, path: str, body: Object) -> None:
    """Apply on the server's side, as helm."""
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
    """Return what matters of an object, for comparing."""
    if item is None:
        return None
    meta = item["metadata"]
    return (
        {key: meta.get(key) for key in ("name", "labels", "annotations")},
        {key: item.get(key) for key in ("webhooks", "spec", "data")},
    )
