"""The ConfigMap `fairgate-enforcement`: the documents of the enforcement objects, and the mode.

It belongs to the chart. Its last contents are restored if somebody deletes or damages it. Contents
of another version of the chart may be unknown here: then the former documents stay in force until
replicas of that version run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from app.core.errors import ClusterError, InvalidInput
from app.core.policy import Mode
from app.kube.enforcement_apply import Restorer
from app.kube.enforcement_reports import DELETED, EnforcementReports
from app.kube.enforcement_spec import (
    CONFIG_MAP,
    Object,
    Ref,
    desired_metadata,
    read_documents,
    read_mode,
)

log = logging.getLogger("fairgate.kube")

CHART = "helm.sh/chart"
"""Label with the name and version of the chart."""

Documents = dict[Ref, Object]


class EnforcementMap:
    """Reads and restores the ConfigMap."""

    def __init__(
        self,
        restorer: Restorer,
        reports: EnforcementReports,
        namespace: str,
        *,
        observing: Callable[[], bool],
        default_mode: Callable[[Mode], None],
        on_change: Callable[[Documents], None],
    ) -> None:
        """`observing`: whether the mode is Observe. `default_mode`: called with the mode as read.

        `on_change`: called with the former documents when there are others.
        """
        self._restorer = restorer
        self._reports = reports
        self.collection = f"/api/v1/namespaces/{namespace}/configmaps"
        """The API path of the ConfigMaps of the namespace."""
        self._observing = observing
        self._default_mode = default_mode
        self._on_change = on_change
        self._last_read: Object | None = None
        self._restoring = asyncio.Lock()
        self._last_unknown = ""
        """Why the contents of another version of the chart could not be read."""
        self.documents: Documents = {}
        """The documents as last read. A change replaces the whole dict."""

    @property
    def is_known(self) -> bool:
        """Return whether it was read once."""
        return self._last_read is not None

    async def read(self) -> bool:
        """Read the ConfigMap. Return whether it changed. A missing ConfigMap is restored.

        Raises ClusterError, also if it is missing or invalid and its contents were never read.
        """
        path = f"{self.collection}/{CONFIG_MAP}"
        with contextlib.suppress(InvalidInput):
            return self._accept_contents(await self._restorer.read_live(path))
        async with self._restoring:  # the other objects of a round find the same
            found = await self._restorer.read_live(path)
            try:
                return self._accept_contents(found)
            except InvalidInput as error:
                if self._is_of_another_chart(found):
                    self._report_unknown(str(error))
                else:
                    await self._restore(path, found, str(error))
                return False

    def _is_of_another_chart(self, found: Object | None) -> bool:
        """Return whether the ConfigMap is from another version of the chart than the one read."""
        if found is None or self._last_read is None:
            return False
        return bool(_chart_of(found)) and _chart_of(found) != _chart_of(self._last_read)

    def _report_unknown(self, why: str) -> None:
        if why != self._last_unknown:
            facts = {"why": why}
            log.warning("another version of the chart; former objects stay in force", extra=facts)
        self._last_unknown = why

    def _accept_contents(self, found: Object | None) -> bool:
        """Enforce the contents of the ConfigMap. Return whether they changed.

        Raises InvalidInput if it is missing or invalid.
        """
        data = found.get("data") if found is not None else None
        if found is not None and self._last_read is not None and data == self._last_read["data"]:
            self._last_read = found
            return False
        documents, mode = read_documents(data), read_mode(data)
        assert found is not None, "what is not there holds no documents"
        self._last_read, self._last_unknown = found, ""
        self._default_mode(mode)
        before, self.documents = self.documents, documents
        self._on_change(before)
        return True

    async def _restore(self, path: str, found: Object | None, why: str) -> None:
        """Restore a missing or invalid ConfigMap, if its contents are known."""
        if self._last_read is None:
            raise ClusterError(f"{why} Nothing is kept in force until then.")
        if found is None and self._observing():
            return
        wanted = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": desired_metadata(self._last_read),
            "data": self._last_read["data"],
        }
        if await self._restorer.restore(path, found, wanted) is None:
            self._reports.report_removal(f"ConfigMap {CONFIG_MAP}")
            return
        self._reports.report_restore(
            Ref("ConfigMap", CONFIG_MAP), found, [why] if found else [DELETED]
        )


def _chart_of(found: Object) -> str:
    return str((found["metadata"].get("labels") or {}).get(CHART, ""))
