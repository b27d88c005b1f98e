"""Keeps our CA in the APIService, so that the API server knows whom it reaches behind it.

The chart makes the object. Where there is none, the API is not aggregated, and nothing is done.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable

import msgspec

from app import wire
from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import MERGE_PATCH, Client

PATH = "/apis/apiregistration.k8s.io/v1/apiservices/v1.api.fairgate.io"
LOOK_SECONDS = 15.0

log = logging.getLogger("fairgate.kube")


class ApiService:
    """The CA in the APIService, written by `publish` and looked after by `run`."""

    def __init__(self, client: Client, is_within: Callable[[bytes, bytes], bool]) -> None:
        """`is_within` tells whether whoever trusts the second bundle trusts all of the first."""
        self._client = client
        self._is_within = is_within
        self._wanted = b""

    async def publish(self, ca_pem: bytes) -> None:
        """Have the API server trust these CAs, and no others. Raises ClusterError."""
        self._wanted = ca_pem
        found = await self._read()
        if found is not None and found != ca_pem:
            await self._write()

    async def run(self) -> None:
        """Put the CA back whenever it is gone, until cancelled."""
        complaint = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
                complaint = ""
            except ClusterError as error:
                if str(error) != complaint:
                    log.warning("the APIService cannot be kept", extra={"why": str(error)})
                complaint = str(error)

    async def look(self) -> None:
        """Look once. Raises ClusterError."""
        found = await self._read()
        # Another replica may be a step ahead of us, and then it trusts what we trust, and more.
        if self._wanted and found is not None and not self._is_within(self._wanted, found):
            await self._write()
            log.info("the CA of the APIService was put back")

    async def _read(self) -> bytes | None:
        """Return the CAs in it; None: there is no APIService."""
        try:
            answer = await self._client.request("GET", PATH)
            text = msgspec.json.decode(answer, type=wire.ApiService).spec.ca_bundle
            return base64.b64decode(text or "")
        except ClusterRefused as error:
            if error.status == 404:
                return None
            raise
        except (msgspec.DecodeError, binascii.Error) as error:
            raise ClusterError(f"APIService v1.api.fairgate.io cannot be read: {error}") from error

    async def _write(self) -> None:
        text = base64.b64encode(self._wanted).decode("ascii")
        body = {"spec": {"caBundle": text}}
        await self._client.request("PATCH", PATH, body=body, content_type=MERGE_PATCH)
