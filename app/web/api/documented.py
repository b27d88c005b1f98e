"""What the OpenAPI document of an app says of a path: its methods, and the queries of each.

A query that is not documented is refused: a `dryrun` that was misspelt would write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from fastapi import FastAPI, Request

from app.web.problems import Refused

WITH_SLASHES = "user"
"""The one name in paths that may hold slashes."""

_NAME = re.compile(r"\\{(\w+)\\}")
_VERBS = ("get", "put", "post", "delete", "patch", "head", "options")

Queries = Mapping[str, frozenset[str]]
"""By method."""


class Documented:
    """The document of an app, which is asked for when it is first needed."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def methods(self, path: str) -> list[str]:
        """Return what may be asked at a path."""
        return sorted(self._at(path))

    async def need_known(self, request: Request) -> None:
        """Raise Refused (400) for a query that nobody documented. A FastAPI dependency."""
        if not request.query_params:
            return
        known = self._at(str(request.scope["path"])).get(request.method, frozenset())
        for name in request.query_params:
            if name not in known:
                told = f"known here: {', '.join(sorted(known))}" if known else "none is known here"
                raise Refused(400, f"{name[:80]}: there is no such query; {told}.")

    def _at(self, path: str) -> Queries:
        for pattern, queries in self._paths:
            if pattern.fullmatch(path):
                return queries
        return {}

    @cached_property
    def _paths(self) -> list[tuple[re.Pattern[str], Queries]]:
        return [
            (
                _pattern(path),
                {
                    verb.upper(): frozenset(
                        each["name"]
                        for each in operation.get("parameters", ())
                        if each["in"] == "query"
                    )
                    for verb, operation in item.items()
                    if verb in _VERBS
                },
            )
            for path, item in self._app.openapi()["paths"].items()
        ]


def _pattern(path: str) -> re.Pattern[str]:
    def named(found: re.Match[str]) -> str:
        return ".+" if found[1] == WITH_SLASHES else "[^/]+"

    return re.compile(_NAME.sub(named, re.escape(path)), re.DOTALL)
