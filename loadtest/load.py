"""The load: one client creates, patches and deletes pods over 16 connections.

Independent of Fairgate, so that every arm of a measure sends the same requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable, FairgateError
from app.k8s_types import objects
from app.kube.client import JSON_PATCH, Client

CONNECTIONS = 16
RESOURCE = "nvidia.com/gpu"
OWN_GATE = "example.com/bench"
POLL_SECONDS = 0.1
REQUEST_SECONDS = 30.0
CLEARING_SECONDS = 180.0

UNGATE = msgspec.json.encode(
    [
        {"op": "test", "path": "/spec/schedulingGates", "value": [{"name": OWN_GATE}]},
        {"op": "remove", "path": "/spec/schedulingGates"},
    ]
)
"""The smallest patch that removes this gate, and fails if other gates exist."""

_Item = TypeVar("_Item")
_pod = msgspec.json.Decoder(objects.PodObject)
_bare_page = msgspec.json.Decoder(objects.ListPage[objects.MetadataOnly])


class BenchFailed(FairgateError):
    """A measure ended without a result."""


def pod(name: str, *, gated: bool, gpus: int = 1) -> bytes:
    """Return the JSON of an ordinary pod; `gated`: with the gate of the benchmark."""
    resources: dict[str, Any] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    if gpus:
        resources["limits"] = {RESOURCE: gpus}
    container = {"name": "train", "image": "train", "resources": resources}
    spec: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if gated:
        spec["schedulingGates"] = [{"name": OWN_GATE}]
    return msgspec.json.encode(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )


def names(count: int) -> list[str]:
    """Return `count` pod names."""
    return [f"pod-{number:05}" for number in range(count)]


def pods_path(namespace: str, name: str = "") -> str:
    """Return the API path of the pods of a namespace, or of one pod."""
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first exception itself instead of an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures


async def over(
    items: Sequence[_Item], send: Callable[[_Item], Awaitable[object]], limit: float
) -> float:
    """Call `send` for every item, 16 at a time; return the seconds until the last answer.

    Raises BenchFailed after `limit` seconds, and the errors of `send`.
    """
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await send(item)

    began = time.monotonic()
    try:
        async with asyncio.timeout(limit), together() as group:
            for _ in range(CONNECTIONS):
                group.create_task(worker())
    except TimeoutError as error:
        raise BenchFailed(f"{len(items)} requests took more than {limit:.0f} s.") from error
    return time.monotonic() - began


async def create_pod(client: Client, namespace: str, body: bytes) -> None:
    """Create one pod."""
    await client.request("POST", pods_path(namespace), body=body, timeout=REQUEST_SECONDS)


async def create_pods(client: Client, namespace: str, bodies: Sequence[bytes]) -> float:
    """Create all these pods; return the seconds taken."""
    return await over(bodies, partial(create_pod, client, namespace), 10 + len(bodies) / 20)


async def ungate(client: Client, namespace: str, name: str) -> None:
    """Remove the gate of the benchmark from one pod."""
    await client.request(
        "PATCH",
        pods_path(namespace, name),
        body=UNGATE,
        content_type=JSON_PATCH,
        timeout=REQUEST_SECONDS,
    )


async def gates_of(client: Client, namespace: str, name: str) -> list[str]:
    """Return the scheduling gates of a pod in order."""
    body = await client.request("GET", pods_path(namespace, name))
    return [gate.name for gate in _pod.decode(body).spec.scheduling_gates or ()]


async def create(client: Client, path: str, body: dict[str, Any]) -> None:
    """Create one object; it may already exist."""
    try:
        await client.request("POST", path, body=body)
    except ClusterRefused as error:
        if error.status != 409:
            raise


async def create_namespace(client: Client, name: str) -> None:
    """Create a namespace and wait until it accepts pods."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await create(client, "/api/v1/namespaces", body)
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    await until(lambda: _exists(client, account), f"namespace {name} has no service account")


async def clear(client: Client, namespaces: Iterable[str]) -> None:
    """Delete all pods of these namespaces at once, and wait until they are gone."""
    for namespace in namespaces:
        await until(partial(_cleared, client, namespace), f"pods of {namespace} stay")


async def read(client: Client, path: str) -> dict[str, Any]:
    """Return one object."""
    found: dict[str, Any] = msgspec.json.decode(await client.request("GET", path))
    return found


async def until(
    holds: Callable[[], Awaitable[bool]], trouble: str, limit: float = CLEARING_SECONDS
) -> None:
    """Poll until `holds` returns true. Raises BenchFailed with `trouble` after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not await holds():
        if time.monotonic() > deadline:
            raise BenchFailed(f"After {limit:.0f} s {trouble}; the measure was given up.")
        await asyncio.sleep(POLL_SECONDS)


async def _cleared(client: Client, namespace: str) -> bool:
    """Delete all pods of a namespace; return true if it had no pods."""
    path = pods_path(namespace)
    page = await client.request("GET", path, query=[("limit", "1")], timeout=REQUEST_SECONDS)
    if not _bare_page.decode(page).items:
        return True
    now = [("gracePeriodSeconds", "0")]
    # Thousands of deletions on a busy machine exceed the request timeout of the API server.
    with suppress(ClusterUnavailable):
        await client.request("DELETE", path, query=now, timeout=CLEARING_SECONDS)
    return False


async def _exists(client: Client, path: str) -> bool:
    try:
        await client.request("GET", path)
    except ClusterRefused as error:
        if error.status == 404:
            return False
        raise
    return True
