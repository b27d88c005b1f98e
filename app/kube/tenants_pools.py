"""Reads and writes Tenants and Pools, and their status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable, InvalidInput, WriteRefused
from app.core.model import Millis
from app.core.well_known import ANNOTATION_CHANGED, ANNOTATION_CHANGED_BY
from app.k8s_types.deep_json import Decoder
from app.kube.client import JSON, JSON_PATCH, MERGE_PATCH, Client
from app.kube.convert import read_time
from app.kube.informer.sources import GROUP
from app.ports.api import Stored
from app.ports.cluster import StoredCondition, StoredStatus

VERSION = "fairgate.io/v1alpha1"
KINDS = {"tenants": "Tenant", "pools": "Pool"}
VALIDATED_STATUSES = (400, 403, 413, 422)
"""Status codes of the API server after it has validated a write."""

_anything = Decoder[Any](object)
_STRICT = [("fieldManager", "fairgate-api"), ("fieldValidation", "Strict")]
_NOT_READ = (msgspec.DecodeError, KeyError, TypeError, AttributeError)
_OF_WHAT = re.compile(r'^\S+ "[^"]*" is (invalid|forbidden): ')
_VALUE = re.compile(r'Invalid value: (("(string|object|array|integer|number)"|\{.*?\}): )?')


class KubeResources:
    """Implements `ports.api.TenantsAndPools`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, kind: str, name: str) -> Stored | None:
        """Return the current object, or None if it does not exist. Raises ClusterError."""
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
        """Replace the spec of `before`, or create the object. Return the stored object.

        Returns None if the object changed since `before`. Raises ClusterError, WriteRefused.
        """
        if before is None:
            body: Any = _new_object(kind, name, spec, by)
            answer = await self._send_write("POST", _path(kind), body, JSON, dry_run, (409,))
        else:
            body = _update_patch(before, spec, by)
            path = _path(kind, name)
            answer = await self._send_write("PATCH", path, body, JSON_PATCH, dry_run, (404, 409))
        return None if answer is None else _stored(answer)

    async def delete(self, kind: str, before: Stored, by: str, dry_run: bool = False) -> bool:
        """Delete the object. Return False if it changed since `before`. Raises ClusterError."""
        meta = before.document["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta["uid"], "resourceVersion": before.version},
            # With a body, the API server ignores these options in the query.
            "dryRun": ["All"] * dry_run,
        }
        path = _path(kind, before.name)
        return await self._send_write("DELETE", path, body, JSON, dry_run, (404, 409)) is not None

    async def _send_write(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str,
        dry_run: bool,
        changed: tuple[int, ...],
    ) -> bytes | None:
        """Send a write. Return None if the status is in `changed`."""
        query = [*(_STRICT if method != "DELETE" else ()), *([("dryRun", "All")] * dry_run)]
        try:
            return await self._client.request(
                method, path, query=query, body=body, content_type=content_type
            )
        except ClusterRefused as error:
            if error.status in changed:
                return None
            if error.status not in VALIDATED_STATUSES:
                raise
            said = str(error).removeprefix(f"{method} {path}: {error.status} ")
            raise WriteRefused(plain_message(said), error.status) from error


def plain_message(said: str) -> str:
    """Return the API server's message without the parts that the user knows already."""
    kept = _VALUE.sub("", _OF_WHAT.sub("", said)).strip()
    return kept if kept.endswith(".") else kept + "."


def _path(kind: str, name: str = "") -> str:
    at = f"/apis/{VERSION}/{kind}"
    return f"{at}/{quote(name, safe='')}" if name else at


def _new_object(kind: str, name: str, spec: Mapping[str, Any], by: str) -> dict[str, Any]:
    return {
        "apiVersion": VERSION,
        "kind": KINDS[kind],
        "metadata": {"name": name, "annotations": _stamps(by, 1)},
        "spec": dict(spec),
    }


def _update_patch(before: Stored, spec: Mapping[str, Any], by: str) -> list[dict[str, Any]]:
    meta = before.document["metadata"]
    stamps = _stamps(by, meta["generation"] + 1)
    patch: list[dict[str, Any]] = [
        # The API server applies a patch with a version to that version, or returns 409.
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
    # The webhook writes them too. This also works while the webhook is down.
    return {ANNOTATION_CHANGED_BY: by, ANNOTATION_CHANGED: str(generation)}


def _stored(answer: bytes) -> Stored:
    try:
        document = _anything.decode(answer)
        meta = document["metadata"]
        return Stored(
            name=meta["name"],
            edition=f"{meta['uid']}-{meta['generation']}",
            version=meta.get("resourceVersion", ""),  # the result of a dry run has no version
            spec=document.get("spec") or {},
            document=document,
        )
    except _NOT_READ as error:
        raise _foreign("an object") from error


def _foreign(wanted: str) -> ClusterUnavailable:
    return ClusterUnavailable(
        f"The API server answered with something else than {wanted}; is it behind a proxy?"
    )


def _since(condition: Mapping[str, Any]) -> Millis | None:
    """Return the last transition, None without a time that can be written again."""
    try:
        since = read_time("status", condition.get("lastTransitionTime") or "")
    except InvalidInput:
        return None
    return since if since > 0 else None


class ResourceStatus:
    """Implements `ports.cluster.StatusWriter` on the status subresource."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read_status(self, kind: str) -> StoredStatus:
        """Return what all objects of a kind have in their status. Raises ClusterError.

        A condition without a time, or with one that is not a time, is left out.
        """
        answer = await self._client.request("GET", f"{GROUP}/{kind}")
        found, keys = {}, {}
        try:
            for item in _anything.decode(answer)["items"]:
                name, uid = item["metadata"]["name"], item["metadata"]["uid"]
                status = item.get("status", {})
                for field, value in status.items():
                    if isinstance(value, dict):
                        keys[name, field] = frozenset(value)
                for each in status.get("conditions", ()):
                    if since := _since(each):
                        found[name, each["type"]] = StoredCondition(
                            uid, each["status"] == "True", since
                        )
        except _NOT_READ as error:
            raise _foreign("a list") from error
        return StoredStatus(found, keys)

    async def write_status(self, kind: str, name: str, status: dict[str, object]) -> None:
        """Merge `status` into the status of a tenant, pool or policy.

        None removes a field, or a key of a map. Other keys of a map stay.

        A deleted object is no error. Raises ClusterError.
        """
        path = f"{GROUP}/{kind}/{quote(name, safe='')}/status"
        try:
            await self._client.request(
                "PATCH", path, body={"status": status}, content_type=MERGE_PATCH
            )
        except ClusterRefused as error:
            if error.status != 404:
                raise
