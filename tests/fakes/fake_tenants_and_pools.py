"""Tenants and Pools in memory, in the form that the API server stores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.core.errors import ClusterUnavailable, WriteRefused
from app.ports.api import Stored

Object = dict[str, Any]


@dataclass
class FakeResources:
    """Implements `ports.api.TenantsAndPools`. `before_write` may change objects first, or raise."""

    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    before_write: Callable[[str], None] = lambda name: None
    deaf: bool = False
    """Writes take effect, but no reply comes back."""

    version: int = 0

    def put(self, kind: str, name: str, spec: Mapping[str, Any], by: str = "root") -> None:
        """Store an object, as another client would."""
        self._put(kind, name, spec, by)

    def spec(self, kind: str, name: str) -> Object | None:
        """Return the spec of the stored object, None if absent."""
        found = self.objects.get((kind, name))
        return None if found is None else found["spec"]

    def by(self, kind: str, name: str) -> str:
        """Return the caller that changed the object last."""
        return str(self.objects[kind, name]["metadata"]["annotations"]["fairgate.io/changed-by"])

    def touch(self, kind: str, name: str) -> None:
        """Change the status as the leader does: new resourceVersion, same generation."""
        self.version += 1
        self.objects[kind, name]["metadata"]["resourceVersion"] = str(self.version)

    async def read(self, kind: str, name: str) -> Stored | None:
        found = self.objects.get((kind, name))
        return None if found is None else _stored(found)

    async def write(
        self,
        kind: str,
        name: str,
        spec: Mapping[str, Any],
        by: str,
        before: Stored | None,
        dry_run: bool = False,
    ) -> Stored | None:
        self.before_write(name)
        if not self._is_as(kind, name, before):
            return None
        if spec.get("weight") == "0007":
            raise WriteRefused("spec.weight: must be a decimal number.", 422)
        kept = copy.deepcopy(self.objects)
        stored = _stored(self._put(kind, name, spec, by))
        if dry_run:
            self.objects = kept
        self._reply()
        return stored

    async def delete(self, kind: str, before: Stored, by: str, dry_run: bool = False) -> bool:
        self.before_write(before.name)
        if not self._is_as(kind, before.name, before):
            return False
        if not dry_run:
            del self.objects[kind, before.name]
        self._reply()
        return True

    def _is_as(self, kind: str, name: str, before: Stored | None) -> bool:
        found = self.objects.get((kind, name))
        if found is None or before is None:
            return found is None and before is None
        return str(found["metadata"]["resourceVersion"]) == before.version

    def _put(self, kind: str, name: str, spec: Mapping[str, Any], by: str) -> Object:
        self.version += 1
        old = self.objects.get((kind, name))
        meta: Object = {"name": name, "uid": f"uid-{self.version}", "generation": 0}
        if old is not None:
            meta = dict(old["metadata"])
        whole = copy.deepcopy(dict(spec))
        if kind == "tenants":
            whole = {"weight": "1", "paused": False, **whole}
        meta["generation"] += old is None or old["spec"] != whole
        meta["resourceVersion"] = str(self.version)
        meta["annotations"] = {"fairgate.io/changed-by": by}
        self.objects[kind, name] = {"metadata": meta, "spec": whole}
        return self.objects[kind, name]

    def _reply(self) -> None:
        if self.deaf:
            raise ClusterUnavailable("no answer")


def _stored(found: Object) -> Stored:
    document = copy.deepcopy(found)
    meta = document["metadata"]
    return Stored(
        name=meta["name"],
        edition=f"{meta['uid']}-{meta['generation']}",
        version=meta["resourceVersion"],
        spec=document["spec"],
        document=document,
    )
