"""Queries a Prometheus server for the use of the devices of pods."""

from __future__ import annotations

import math
from collections.abc import Mapping

import aiohttp
import msgspec

from app.core.errors import ClusterUnavailable

QUERY = (
    "max by (namespace, pod, exported_namespace, exported_pod) "
    "(avg_over_time(DCGM_FI_DEV_GPU_UTIL[WINDOW]))"
)
"""Utilization of each pod's busiest device in per cent, as NVIDIA's DCGM exporter reports it."""

SECONDS = 20.0
MOST_BYTES = 64 * 2**20
"""Most bytes of an answer."""


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data = _Data()


_answer = msgspec.json.Decoder(_Answer)


class Prometheus:
    """`ports.cluster.DeviceUse` on the HTTP API of Prometheus. WINDOW in `query` is a duration."""

    def __init__(self, url: str, query: str = QUERY) -> None:
        self._url = url.rstrip("/") + "/api/v1/query"
        self._query = query

    async def read_peak_device_use(self, seconds: int) -> Mapping[tuple[str, str], float]:
        """Return for each pod the utilization of its busiest device in the last `seconds`.

        Keys are namespace and name, values are from 0 to 1. Raises ClusterUnavailable.
        """
        query = self._query.replace("WINDOW", f"{seconds}s")
        limits = aiohttp.ClientTimeout(total=SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=limits, trust_env=True) as session,
                session.post(self._url, data={"query": query}) as response,
            ):
                body = await _read_body(response.content)
                status = response.status
        except (aiohttp.ClientError, OSError) as error:
            why = str(error) or type(error).__name__
            raise ClusterUnavailable(f"{self._url}: no answer ({why}).") from error
        try:
            answer = _answer.decode(body)
        except msgspec.DecodeError as error:
            raise ClusterUnavailable(f"{self._url}: {status}, no answer to a query.") from error
        if answer.status != "success":
            raise ClusterUnavailable(f"{self._url}: {status} {answer.error}.")
        return _by_pod(answer.data.result)


async def _read_body(content: aiohttp.StreamReader) -> bytes:
    """Return the body, at most `MOST_BYTES`. One read returns only the bytes received so far."""
    found = bytearray()
    while len(found) < MOST_BYTES and (part := await content.read(MOST_BYTES - len(found))):
        found += part
    return bytes(found)


def _by_pod(series: list[_Series]) -> dict[tuple[str, str], float]:
    """Return the largest value of each pod.

    If Prometheus labels conflict with the exporter's, the pod's labels have the prefix `exported_`.
    """
    found: dict[tuple[str, str], float] = {}
    for each in series:
        labels = each.metric
        exported = labels.get("exported_pod", "")
        name = exported or labels.get("pod", "")
        namespace = labels.get("exported_namespace" if exported else "namespace", "")
        try:
            part = float(each.value[1]) / 100
        except ValueError:
            continue
        if name and namespace and math.isfinite(part):
            found[namespace, name] = max(part, found.get((namespace, name), 0.0))
    return found
