"""API aggregation: the CA bundle of the APIService, and the front-proxy CA of the API server."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable

import msgspec

from app.core.errors import ClusterError, ClusterRefused
from app.k8s_types import objects
from app.kube.client import MERGE_PATCH, Client
from app.kube.informer.change_watch import watch_changes
from app.ports.api import FrontProxySettings

PATH = "/apis/apiregistration.k8s.io/v1/apiservices/v1.api.fairgate.io"
LOOK_SECONDS = 15.0

log = logging.getLogger("fairgate.kube")


class ApiServiceBundle:
    """The CA in the APIService. `publish` writes it, `maintain_bundle` restores it."""

    def __init__(self, client: Client, is_within: Callable[[bytes, bytes], bool]) -> None:
        """`is_within(first, second)`: whether `second` contains all CAs of `first`."""
        self._client = client
        self._is_within = is_within
        self._wanted = b""

    async def publish(self, ca_pem: bytes) -> None:
        """Make the API server trust exactly these CAs. Raises ClusterError."""
        self._wanted = ca_pem
        found = await self._read()
        if found is not None and found != ca_pem:
            await self._write()

    async def maintain_bundle(self) -> None:
        """Restore the CA whenever it is missing, until cancelled."""
        complaint = ""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.check()
                complaint = ""
            except ClusterError as error:
                if str(error) != complaint:
                    log.warning("the APIService cannot be kept", extra={"why": str(error)})
                complaint = str(error)

    async def check(self) -> None:
        """Check and restore once. Raises ClusterError."""
        found = await self._read()
        # Another replica may be a step ahead. Its bundle then contains this one and more.
        if self._wanted and found is not None and not self._is_within(self._wanted, found):
            await self._write()
            log.info("the CA of the APIService was put back")

    async def _read(self) -> bytes | None:
        """Return the CAs in the APIService, or None if there is no APIService."""
        try:
            answer = await self._client.request("GET", PATH)
            text = msgspec.json.decode(answer, type=objects.ApiServiceObject).spec.ca_bundle
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


MAPS = "/api/v1/namespaces/kube-system/configmaps"
NAME = "extension-apiserver-authentication"
RETRY_SECONDS = 2.0


class FrontProxy:
    """Calls `on_settings` with the settings, now and on each change. `is_known`: it was called
    once.
    """

    def __init__(self, client: Client, on_settings: Callable[[FrontProxySettings], None]) -> None:
        self.is_known = False
        self._client = client
        self._on_settings = on_settings
        self._changed = asyncio.Event()

    async def watch_ca(self) -> None:
        """Watch until cancelled."""
        complaint = ""
        async with asyncio.TaskGroup() as group:
            group.create_task(watch_changes(self._client, MAPS, self._note_change, only=NAME))
            while True:
                await self._changed.wait()
                self._changed.clear()
                try:
                    self._on_settings(await self._read())
                    self.is_known, complaint = True, ""
                except ClusterError as error:
                    if str(error) != complaint:
                        log.warning("the front proxy is not known", extra={"why": str(error)})
                    complaint = str(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    self._changed.set()

    def _note_change(self, name: str | None) -> None:
        self._changed.set()

    async def _read(self) -> FrontProxySettings:
        """Return the settings, empty if missing; then no client is trusted. Raises ClusterError."""
        try:
            answer = await self._client.request("GET", f"{MAPS}/{NAME}")
        except ClusterRefused as error:
            if error.status == 404:
                return FrontProxySettings()
            raise
        return read_front(answer)


def read_front(answer: bytes) -> FrontProxySettings:
    """Return the settings in a ConfigMap. Raises ClusterError if they are invalid."""
    try:
        data = msgspec.json.decode(answer, type=objects.ConfigMap).data or {}

        def listed(key: str) -> tuple[str, ...]:
            found = data.get(f"requestheader-{key}", "[]")
            return tuple(msgspec.json.decode(found, type=list[str]))

        return FrontProxySettings(
            ca=data.get("requestheader-client-ca-file", "").encode(),
            allowed_names=listed("allowed-names"),
            user_headers=listed("username-headers"),
            uid_headers=listed("uid-headers"),
            group_headers=listed("group-headers"),
            extra_prefixes=listed("extra-headers-prefix"),
        )
    except msgspec.DecodeError as error:
        raise ClusterError(f"ConfigMap kube-system/{NAME} cannot be read: {error}") from error
