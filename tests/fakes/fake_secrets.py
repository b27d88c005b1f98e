"""Secrets in memory, with versions, as the API server stores them."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.errors import ClusterUnavailable
from app.ports.cluster import SecretData


class FakeSecrets:
    """Implements `ports.cluster.Secrets`. Every Secret created here counts as Fairgate's own."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str], SecretData] = {}
        self.silent = False
        """No request gets through."""
        self.tries = 0
        self._version = 0

    async def read_secret(self, namespace: str, name: str) -> SecretData | None:
        self._answer()
        return self.stored.get((namespace, name))

    async def create_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], kind: str = "Opaque"
    ) -> bool:
        self._answer()
        if (namespace, name) in self.stored:
            return False
        self.put(namespace, name, data, ours=True)
        return True

    async def replace_secret(
        self, namespace: str, name: str, data: Mapping[str, bytes], version: str
    ) -> bool:
        self._answer()
        found = self.stored.get((namespace, name))
        if found is None or found.version != version:
            return False
        self.put(namespace, name, data, ours=found.ours)
        return True

    def put(self, namespace: str, name: str, data: Mapping[str, bytes], *, ours: bool) -> None:
        """Write a Secret, as a user with kubectl would."""
        self._version += 1
        self.stored[namespace, name] = SecretData(dict(data), str(self._version), ours)

    def _answer(self) -> None:
        self.tries += 1
        if self.silent:
            raise ClusterUnavailable("no answer")
