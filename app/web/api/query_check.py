"""Refuses query parameters that the OpenAPI document of the app does not contain, or only once.

A misspelt `dryrun` would otherwise write, and `dryRun=true&dryRun=false` too. It also returns the
methods of a path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request

from app.web.api.refused import Refused

WITH_SLASHES = "user"
"""The only path parameter that may contain slashes."""

_NAME = re.compile(r"\\{(\w+)\\}")
_VERBS = ("get", "put", "post", "delete", "patch", "head", "options")

Queries = Mapping[str, Mapping[str, bool]]
"""The query parameters of each method, and whether they may be repeated."""


class KnownParameters:
    """The OpenAPI document of an app, generated at its first use."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def methods(self, path: str) -> list[str]:
        """Return the methods of a path, sorted."""
        return sorted(self._queries_at(path))

    async def require_known_query(self, request: Request) -> None:
        """Raise Refused (400) for an undocumented or repeated query. A FastAPI dependency."""
        if not request.query_params:
            return
        known = self._queries_at(str(request.scope["path"])).get(request.method, {})
        for name in request.query_params:
            if name not in known:
                told = (
                    f"known here: {', '.join(sorted(known))}" if known else "it has no parameters"
                )
                raise Refused(400, f"{name[:80]}: there is no such query; {told}.")
            if not known[name] and len(request.query_params.getlist(name)) > 1:
                raise Refused(400, f"{name}: this query is given several times; give it once.")

    def _queries_at(self, path: str) -> Queries:
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
                    verb.upper(): {
                        each["name"]: _is_list(each["schema"])
                        for each in operation.get("parameters", ())
                        if each["in"] == "query"
                    }
                    for verb, operation in item.items()
                    if verb in _VERBS
                },
            )
            for path, item in self._app.openapi()["paths"].items()
        ]


def _is_list(schema: Mapping[str, Any]) -> bool:
    return any(each.get("type") == "array" for each in (schema, *schema.get("anyOf", ())))


def _pattern(path: str) -> re.Pattern[str]:
    def named(found: re.Match[str]) -> str:
        return ".+" if found[1] == WITH_SLASHES else "[^/]+"

    return re.compile(_NAME.sub(named, re.escape(path)), re.DOTALL)
