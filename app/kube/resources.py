"""Tenants and Pools as the API server has them, read and written: `api_ports.Resources`.

Writes as Fairgate's own account and names whoever wants it: the rights of that person are the
business of whoever calls. Decides nothing, repeats nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from app.api_ports import Stored
from app.core.errors import ClusterRefused, ClusterUnavailable, WriteRefused
from app.core.model import ANNOTATION_CHANGED, ANNOTATION_CHANGED_BY
from app.kube.client import JSON, JSON_PATCH, Client

VERSION = "fairgate.io/v1alpha1"
KINDS = {"tenants": "Tenant", "pools": "Pool"}
JUDGED = (400, 403, 413, 422)
"""What the API server answers once it has read and judged a write."""

_STRICT = [("fieldManager", "fairgate-api"), ("fieldValidation", "Strict")]
_OF_WHAT = re.compile(r'^\S+ "[^"]*" is (invalid|forbidden): ')
_VALUE = re.compile(r'Invalid value: (("(string|object|array|integer|number)"|\{.*?\}): )?')


class KubeResources:
    """Implements `api_ports.Resources`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, kind: str, name: str) -> Stored | None:
        """Return it as it is now; None if there is none. Raises ClusterError."""
        try:
            return _stored(await self._client.request("GET", _path(kind, name)))
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def write(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        by: str,
        before: Stored | None,
        dry_run: bool = False,
    ) -> Stored | None:
        """Put this spec in place of that `before`, or make it anew; return what was stored.

        None: it is no longer what it was before. Raises ClusterError, WriteRefused.
        """
        if before is None:
            body: Any = _new(kind, name, spec, by)
            answer = await self._judged("POST", _path(kind), body, JSON, dry_run, (409,))
        else:
            body = _change(before, spec, by)
            path = _path(kind, name)
            answer = await self._judged("PATCH", path, body, JSON_PATCH, dry_run, (404, 409))
        return None if answer is None else _stored(answer)

    async def delete(self, kind: str, before: Stored, by: str, dry_run: bool = False) -> bool:
        """Delete it; False if it is no longer what it was before. Raises ClusterError."""
        meta = before.document["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta["uid"], "resourceVersion": before.version},
            # Where there is a body, the API server reads nothing of this in the query.
            "dryRun": ["All"] * dry_run,
        }
        path = _path(kind, before.name)
        return await self._judged("DELETE", path, body, JSON, dry_run, (404, 409)) is not None

    async def _judged(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str,
        dry_run: bool,
        changed: tuple[int, ...],
    ) -> bytes | None:
        """Send a write; None if the answer is one of `changed`."""
        query = [*(_STRICT if method != "DELETE" else ()), *([("dryRun", "All")] * dry_run)]
        try:
            return await self._client.request(
                method, path, query=query, body=body, content_type=content_type
            )
        except ClusterRefused as error:
            if error.status in changed:
                return None
            if error.status not in JUDGED:
                raise
            said = str(error).removeprefix(f"{method} {path}: {error.status} ")
            raise WriteRefused(sentence(said), error.status) from error


def sentence(said: str) -> str:
    """Return what the API server said of an object, without what its reader knows already."""
    kept = _VALUE.sub("", _OF_WHAT.sub("", said)).strip()
    return kept if kept.endswith(".") else kept + "."


def _path(kind: str, name: str = "") -> str:
    at = f"/apis/{VERSION}/{kind}"
    return f"{at}/{quote(name, safe='')}" if name else at


def _new(kind: str, name: str, spec: Mapping[str, Any], by: str) -> dict[str, Any]:
    return {
        "apiVersion": VERSION,
        "kind": KINDS[kind],
        "metadata": {"name": name, "annotations": _stamps(by, 1)},
        "spec": dict(spec),
    }


def _change(before: Stored, spec: Mapping[str, Any], by: str) -> list[dict[str, Any]]:
    meta = before.document["metadata"]
    stamps = _stamps(by, meta["generation"] + 1)
    patch: list[dict[str, Any]] = [
        # With a version in it, the API server applies the patch to that version or answers 409.
        {"op": "replace", "path": "/metadata/resourceVersion", "value": before.version},
        {"op": "add", "path": "/spec", "value": dict(spec)},
    ]
    if not meta.get("annotations"):
        return [*patch, {"op": "add", "path": "/metadata/annotations", "value": stamps}]
    for key, value in stamps.items():
        path = f"/metadata/annotations/{key.replace('/', '~1')}"
        patch.append({"op": "add", "path": path, "value": value})
    return patch


def _stamps(by: str, generation: int) -> dict[str, str]:
    # The webhook writes them too. It may be away, and the name stands all the same.
    return {ANNOTATION_CHANGED_BY: by, ANNOTATION_CHANGED: str(generation)}


def _stored(answer: bytes) -> Stored:
    try:
        document = msgspec.json.decode(answer)
        meta = document["metadata"]
        return Stored(
            name=meta["name"],
            edition=f"{meta['uid']}-{meta['generation']}",
            version=meta.get("resourceVersion", ""),  # what a dry run makes has none
            spec=document.get("spec") or {},
            document=document,
        )
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ClusterUnavailable(
            "The API server answered with something else than an object; is it behind a proxy?"
        ) from error
