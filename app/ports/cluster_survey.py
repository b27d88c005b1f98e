"""Port of the read-only access to a cluster that `fairgate doctor` needs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

Object = dict[str, Any]
"""An object of the API server, as JSON."""


class ClusterSurvey(Protocol):
    """Reads the API server with the rights of the caller.

    Both methods raise ClusterRefused if a right is missing (403), and ClusterUnavailable if there
    is no usable answer.
    """

    async def get(self, path: str) -> Object | None:
        """Return the object at an API path, None if it does not exist."""

    def list_pages(self, path: str, size: int) -> AsyncIterator[list[Object]]:
        """Yield the objects of a list in pages of at most `size`.

        The list is empty if the API server does not serve the kind.
        """
