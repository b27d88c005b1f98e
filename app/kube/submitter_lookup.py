"""Finds the submitter of an object by its owner references.

Implements `ports.cluster.SubmitterLookup`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from app.core.admission.submitters import Kinds, OwnerRef, submitter_in
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import UserName
from app.k8s_types.deep_json import Decoder
from app.kube.client import Client
from app.ports.expiring_cache import ExpiringCache

FOUND_SECONDS = 600.0
"""A stamp does not change while its object exists."""

VERSION = re.compile(r"([a-z0-9.-]+/)?v[a-z0-9]+")
"""An `apiVersion` that may be part of a path."""

TIMEOUT = 1.0

_anything = Decoder[Any](object)


class KubeSubmitters:
    """Reads owners that have a known kind, and pods.

    Only the named owner counts, not the owners above it. Each object gets its stamp when it is
    created, and a user may edit the references of an object without a stamp.
    """

    def __init__(
        self,
        client: Client,
        kinds: Kinds,
        clock: Callable[[], float],
        needs_managed: Callable[[Any], bool] = lambda spec: True,
    ) -> None:
        """`clock` returns monotonic seconds. `needs_managed`: whether a pod spec asks for managed
        resources.

        The annotations of other pods are not protected.
        """
        self._client = client
        self._kinds = kinds
        self._needs_managed = needs_managed
        self._found: ExpiringCache[tuple[str, OwnerRef], UserName]
        self._found = ExpiringCache(clock, FOUND_SECONDS)

    async def submitter_of(self, namespace: str, owner: OwnerRef) -> UserName | None:
        """Return the submitter in the stamps of an owner, or None."""
        found = self._found.get((namespace, owner))
        if found is not None:
            return found
        document = await self._read(namespace, owner)
        is_pod = (owner.group, owner.resource) == ("", "pods")
        if is_pod and not self._needs_managed((document or {}).get("spec")):
            return None
        found = submitter_in(document, owner, self._kinds)
        if found is not None:
            self._found.put((namespace, owner), found)
        return found

    async def _read(self, namespace: str, owner: OwnerRef) -> Any:
        """Return this very owner; None if it is of another kind, gone, or replaced."""
        known = (owner.group, owner.resource) in {*self._kinds, ("", "pods")}
        if not known or VERSION.fullmatch(owner.api_version) is None:
            return None
        root = f"/apis/{owner.api_version}" if owner.group else f"/api/{owner.api_version}"
        parts = ("namespaces", namespace, owner.resource, owner.name)
        path = "/".join((root, *(quote(part, safe="") for part in parts)))
        try:
            document = _anything.decode(await self._client.request("GET", path, timeout=TIMEOUT))
        except ClusterRefused as error:
            if error.status in (403, 404):
                return None
            raise
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{path}: garbled ({error}).") from error
        same = isinstance(document, dict) and document.get("metadata", {}).get("uid") == owner.uid
        return document if same else None
