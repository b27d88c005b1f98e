"""An in-memory cluster for `ports.cluster_survey.ClusterSurvey`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from app.core.errors import ClusterRefused
from app.ports.cluster_survey import Object


@dataclass
class FakeSurvey:
    """Objects by the path of their list. `documents` are other paths, such as /version."""

    lists: dict[str, list[Object]] = field(default_factory=dict)
    documents: dict[str, Object] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()
    """Ends of the paths that the caller may not read."""

    def add(self, path: str, items: Iterable[Object]) -> None:
        """Store objects in a list. Namespaced objects are also in the list of their namespace."""
        for item in items:
            self.lists.setdefault(path, []).append(item)
            if space := item["metadata"].get("namespace"):
                prefix, _, resource = path.rpartition("/")
                own = f"{prefix}/namespaces/{space}/{resource}"
                self.lists.setdefault(own, []).append(item)

    async def get(self, path: str) -> Object | None:
        self._check(path)
        if path in self.documents:
            return self.documents[path]
        collection, _, name = path.rpartition("/")
        found = self.lists.get(collection, ())
        return next((item for item in found if item["metadata"]["name"] == name), None)

    async def list_pages(self, path: str, size: int) -> AsyncIterator[list[Object]]:
        self._check(path)
        items = self.lists.get(path, [])
        for start in range(0, len(items), size):
            yield items[start : start + size]

    def _check(self, path: str) -> None:
        if path.endswith(tuple(self.forbidden) or ("\0",)):
            raise ClusterRefused(f"GET {path}: 403 forbidden", 403)
