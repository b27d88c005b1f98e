"""Pod owners and device use without an API server and without Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.errors import ClusterUnavailable


class FakeOwners:
    """`ports.cluster.OwnerLookup`: the pods in `gone` have lost these controllers."""

    def __init__(self) -> None:
        self.gone: dict[str, str] = {}
        self.asked: list[str] = []
        self.silent = False
        """No request gets through."""

    async def find_missing_owner(self, namespace: str, name: str, uid: str) -> str:
        self.asked.append(name)
        if self.silent:
            raise ClusterUnavailable("no answer")
        return self.gone.get(uid, "")


class FakeDeviceUse:
    """`ports.cluster.DeviceUse` with preset values; None means no answer."""

    def __init__(self) -> None:
        self.parts: dict[tuple[str, str], float] | None = {}
        self.spans: list[int] = []

    async def read_peak_device_use(self, seconds: int) -> Mapping[tuple[str, str], float]:
        self.spans.append(seconds)
        if self.parts is None:
            raise ClusterUnavailable("no answer")
        return self.parts
