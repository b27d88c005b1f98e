"""Reads and writes the objects that are kept in force. Decides nothing about when.

Writes as helm would (server-side, as field manager `helm`), so that a later `helm upgrade` finds
nobody in its way; the CA is held by a second manager, so that an upgrade does not take it away.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import APPLY, Client
from app.kube.enforcement import (
    PATHS,
    WEBHOOKS,
    Object,
    differences,
    field,
    identity,
    webhooks,
)

HELM = "helm"
OURS = "fairgate"
NORMAL_FORM = "fairgate-normal-form"
"""Under this name, which no object has, documents are tried; our rights are bound to names."""


class Restorer:
    """Live objects, the normal form of documents, and how one is put back."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def live(self, path: str) -> Object | None:
        """Return an object as it is; None if there is none. Raises ClusterError."""
        try:
            return _decoded(path, await self._client.request("GET", path))
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise

    async def normal(self, document: Object, marks: dict[str, str]) -> Object:
        """Return a document as the API server would store it, with all defaults.

        Raises ClusterError, also if the document is not valid.
        """
        kind = document["kind"]
        body = {
            "apiVersion": document["apiVersion"],
            "kind": kind,
            "metadata": {"name": NORMAL_FORM},
            field(kind): document[field(kind)],
        }
        path = f"{PATHS[kind]}/{NORMAL_FORM}"
        stored = await self._apply(path, body, HELM, dry_run=True)
        if stored["metadata"].get("resourceVersion"):
            raise ClusterError(
                f"Somebody made a {kind} {NORMAL_FORM}, a name Fairgate keeps free; delete it."
            )
        return {**body, "metadata": identity(document, marks), field(kind): stored[field(kind)]}

    async def put_back(self, path: str, live: Object | None, wanted: Object) -> None:
        """Make an object as wanted. Raises ClusterError.

        What we own is applied; what others added to it is then gone by a replacement. One that
        was live and is gone meanwhile is not made anew, but refused as a conflict.
        """
        if live is not None:
            wanted = {**wanted, "metadata": {**wanted["metadata"], "uid": live["metadata"]["uid"]}}
        if live is not None and _names(live) - _names(wanted):
            # Our hold on the CA of a webhook that shall go would keep half of it alive.
            await self._hold_ca(path, wanted, _names(live) & _names(wanted))
        try:
            written = await self._write(path, wanted)
        except ClusterRefused as error:
            if live is None or error.status != 422:
                raise
            # What others added and what we own do not go together.
            await self._replace(path, live, wanted)
            written = await self._write(path, wanted)
        if differences(written, wanted):
            await self._replace(path, written, wanted)

    async def _write(self, path: str, wanted: Object) -> Object:
        written = await self._apply(path, wanted, HELM)
        if wanted["kind"] in WEBHOOKS:
            written = await self._hold_ca(path, wanted, _names(wanted))
        return written

    async def _replace(self, path: str, live: Object, wanted: Object) -> None:
        """Put our contents in place of the live ones, and leave no trace of having done so.

        A second owner of what helm owns would be in the way of its next upgrade.
        """
        at = field(wanted["kind"])
        query = [("fieldManager", OURS)]
        body = {**live, at: wanted[at]}
        written = _decoded(path, await self._client.request("PUT", path, query=query, body=body))
        owners = written["metadata"].get("managedFields") or []
        rest = [each for each in owners if not _is_replacement(each)]
        if rest and rest != owners:
            body = {**written, "metadata": {**written["metadata"], "managedFields": rest}}
            await self._client.request("PUT", path, query=query, body=body)

    async def _hold_ca(self, path: str, wanted: Object, names: set[str]) -> Object:
        """Own the CA of these webhooks in our own name as well, and nothing else."""
        held = [
            {
                "name": each["name"],
                "clientConfig": {"caBundle": each["clientConfig"]["caBundle"]},
            }
            for each in webhooks(wanted)
            if each["name"] in names
        ]
        body = {key: wanted[key] for key in ("apiVersion", "kind")}
        meta = {"name": wanted["metadata"]["name"]}
        return await self._apply(path, {**body, "metadata": meta, "webhooks": held}, OURS)

    async def _apply(
        self, path: str, body: Object, manager: str, *, dry_run: bool = False
    ) -> Object:
        query = [("fieldManager", manager), ("force", "true")]
        query += [("dryRun", "All")] if dry_run else []
        answer = await self._client.request(
            "PATCH", path, query=query, body=body, content_type=APPLY
        )
        return _decoded(path, answer)


def _names(item: Object) -> set[str]:
    return {each["name"] for each in webhooks(item)}


def _is_replacement(owner: Object) -> bool:
    return owner.get("manager") == OURS and owner.get("operation") == "Update"


def _decoded(path: str, answer: bytes) -> Object:
    try:
        found: Any = msgspec.json.decode(answer)
        found["metadata"]["name"]
    except (msgspec.DecodeError, TypeError, KeyError) as error:
        raise ClusterError(f"{path} cannot be read: {error}") from error
    return dict(found)
