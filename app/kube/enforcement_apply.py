"""Reads and writes the enforcement objects. The watchdog decides when.

It writes by server-side apply. The ConfigMap belongs to the chart, so it is written as helm would
(field manager `helm`), and a later `helm upgrade` has no conflicts.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.core.errors import ClusterError, ClusterRefused, ClusterUnavailable, WriteUnanswered
from app.kube.client import APPLY, JSON, Client, Query
from app.kube.enforcement_spec import (
    PATHS,
    Object,
    content_field,
    desired_metadata,
    differences,
)

HELM = "helm"
OURS = "fairgate"
OWNERS = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
NORMAL_FORM = "fairgate-normal-form"
"""Name of dry-run objects; no object has it. Fairgate's permissions are bound to names."""

WRITE_SECONDS = 30.0
"""Time-out of a write. A busy API server needs more than 10 s to compile the expressions of an
object. The read before each write has the usual time-out, so it finds a connection that hangs.
"""


class Restorer:
    """Reads live objects, normalizes documents, and restores objects."""

    def __init__(self, client: Client, owner: str) -> None:
        """`owner`: name of the ClusterRole that owns every object created here."""
        self._client = client
        self._owner = owner

    async def read_live(self, path: str) -> Object | None:
        """Return the live object, or None if it does not exist. Raises ClusterError."""
        try:
            return _decoded(path, await self._client.request("GET", path))
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def normalize(self, document: Object) -> Object:
        """Return the document as the API server would store it, with all defaults.

        Raises ClusterError, also if the document is invalid.
        """
        kind = document["kind"]
        body = {
            "apiVersion": document["apiVersion"],
            "kind": kind,
            "metadata": {"name": NORMAL_FORM},
            content_field(kind): document[content_field(kind)],
        }
        path = f"{PATHS[kind]}/{NORMAL_FORM}"
        stored = await self._apply(path, body, dry_run=True)
        if stored["metadata"].get("resourceVersion"):
            raise ClusterError(
                f"Somebody made a {kind} {NORMAL_FORM}, a name Fairgate keeps free; delete it."
            )
        return {
            **body,
            "metadata": desired_metadata(document),
            content_field(kind): stored[content_field(kind)],
        }

    async def restore(self, path: str, live: Object | None, wanted: Object) -> Object | None:
        """Write an object as wanted, and return it. Return None if Fairgate is being uninstalled.

        Fairgate applies its own fields, then replaces the object if fields of others remain. An
        object that was changed or deleted since `read_live` was read is neither changed nor
        created: the API server returns 409. A deleted object is created again only while the
        ClusterRole of the webhook exists. The ClusterRole owns it: if the ClusterRole is deleted
        too, in any order and by any tool, the garbage collector deletes the object. Raises
        ClusterError.
        """
        owners = self._present_owners(live) or await self._role_owners()
        if live is None and not owners:
            return None
        meta = {**wanted["metadata"], **({"ownerReferences": owners} if owners else {})}
        if live is not None:
            meta |= {key: live["metadata"][key] for key in ("uid", "resourceVersion")}
        return await self._apply_or_replace(path, live, {**wanted, "metadata": meta})

    def _present_owners(self, live: Object | None) -> list[Object]:
        """Return the references of a live object to the ClusterRole."""
        present = live["metadata"].get("ownerReferences") if live is not None else None
        ours = ("ClusterRole", self._owner)
        return [each for each in present or () if (each["kind"], each["name"]) == ours]

    async def _role_owners(self) -> list[Object]:
        """Return an owner reference to the ClusterRole, empty if it does not exist."""
        role = await self.read_live(f"{OWNERS}/{self._owner}")
        if role is None or role["metadata"].get("deletionTimestamp"):
            return []
        kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
        return [{**kind, "name": self._owner, "uid": role["metadata"]["uid"]}]

    async def _apply_or_replace(self, path: str, live: Object | None, wanted: Object) -> Object:
        try:
            written = await self._apply(path, wanted)
        except ClusterRefused as error:
            if live is None or error.status != 422:
                raise
            # Fields of other clients conflict with ours.
            await self._replace(path, live, wanted)
            meta = {k: v for k, v in wanted["metadata"].items() if k != "resourceVersion"}
            written = await self._apply(path, {**wanted, "metadata": meta})
        if live is not None and differences(written, wanted):
            return await self._replace(path, written, wanted)
        return written

    async def _replace(self, path: str, live: Object, wanted: Object) -> Object:
        """Replace the live contents with ours, without a trace in `managedFields`.

        A second owner of fields would keep them when they are no longer applied, and a second
        owner of helm's fields would cause conflicts in the next upgrade.
        """
        at = content_field(wanted["kind"])
        query = [("fieldManager", OURS)]
        body = {**live, at: wanted[at]}
        written = await self._write("PUT", path, query, body)
        owners = written["metadata"].get("managedFields") or []
        rest = [each for each in owners if not _is_replacement(each)]
        if rest and rest != owners:
            body = {**written, "metadata": {**written["metadata"], "managedFields": rest}}
            await self._write("PUT", path, query, body)
        return written

    async def _apply(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        manager = HELM if body["kind"] == "ConfigMap" else OURS
        query = [("fieldManager", manager), ("force", "true")]
        query += [("dryRun", "All")] if dry_run else []
        return await self._write("PATCH", path, query, body, APPLY)

    async def _write(
        self, method: str, path: str, query: Query, body: Object, content_type: str = JSON
    ) -> Object:
        try:
            answer = await self._client.request(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                timeout=WRITE_SECONDS,
            )
        except ClusterUnavailable as error:
            raise WriteUnanswered(str(error)) from error
        return _decoded(path, answer)


def _is_replacement(owner: Object) -> bool:
    return owner.get("manager") == OURS and owner.get("operation") == "Update"


def _decoded(path: str, answer: bytes) -> Object:
    try:
        found: Any = msgspec.json.decode(answer)
        found["metadata"]["name"]
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ClusterError(f"{path} cannot be read: {error}") from error
    return dict(found)
