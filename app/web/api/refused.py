"""The error that makes a request end with an error answer.

It is apart from `problems`, which needs FastAPI: authentication and metrics do without it.
"""

from __future__ import annotations

from collections.abc import Mapping


class Refused(Exception):
    """An error answer to the caller. `detail` is one sentence."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = dict(headers or {})
