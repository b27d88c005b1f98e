"""Owners and measured devices without an API server and a Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.errors import ClusterUnavailable


class FakeOwners:
    """`ports.Owners` that says of the pods in `gone` which controller they lost."""

    def __init__(self) -> None:
        self.gone: dict[str, str] = {}
        self.asked: list[str] = []
        self.silent = False
        """No request gets through."""

    async def missing(self, namespace: str, name: str, uid: str) -> str:
        self.asked.append(name)
        if self.silent:
            raise ClusterUnavailable("no answer")
        return self.gone.get(uid, "")


class FakeDeviceUse:
    """`ports.DeviceUse` that knows what it was told; None: it does not answer."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], float] | None = {}
        self.spans: list[int] = []

    async def busiest(self, seconds: int) -> Mapping[tuple[str, str], float]:
        self.spans.append(seconds)
        if self.parts is None:
            raise ClusterUnavailable("no answer")
        return self.parts
