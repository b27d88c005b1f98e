"""Who took the gates away, by the API server's own audit log (I2).

The log says who wrote to which pod, at best also what. An API server that was killed may have
carried out a write without a line about it: it shows right after our own connections broke.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.observer.judge import Release

CUT_SECONDS = 15.0
WRITER = "system:serviceaccount:fairgate-system:fairgate-controller"


@dataclass(frozen=True, slots=True)
class Write:
    """A write to a pod itself. `opens`: it takes the gate away; None: the log does not say."""

    user: str
    namespace: str
    name: str
    status: int
    opens: bool | None


def read(path: Path) -> list[Write]:
    """Return the writes to pods in an audit log, as far as it is written whole."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return list(_writes(lines))


def judge(
    releases: Iterable[Release], log: Iterable[Write], writer: str, cuts: Iterable[float] = ()
) -> list[str]:
    """Return which releases were done by nobody who may, a sentence each.

    `cuts`: when connections to the API server broke.
    """
    broken = list(cuts)
    by_pod: dict[tuple[str, str], list[Write]] = {}
    for write in log:
        by_pod.setdefault((write.namespace, write.name), []).append(write)
    found = []
    for release in releases:
        pod = release.pod
        writes = by_pod.get((pod.namespace, pod.name), [])
        may_have = [w for w in writes if w.opens is not False and _may_have_happened(w.status)]
        excused = not release.exact or any(0 <= release.at - cut < CUT_SECONDS for cut in broken)
        if not excused and not any(w.user == writer for w in may_have):
            users = sorted({w.user for w in may_have})
            found.append(f"{pod} was released ({pod.stamp}); the audit log names {users}")
        found += [
            f"the gate of {pod} was taken away by {w.user}"
            for w in may_have
            if w.opens and w.status < 300 and w.user != writer
        ]
    return found


def _writes(lines: Iterable[str]) -> Iterator[Write]:
    for line in lines:
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the last line, half written
        what = entry.get("objectRef") or {}
        if what.get("resource") != "pods" or what.get("subresource"):
            continue
        if entry.get("verb") not in ("patch", "update"):
            continue
        yield Write(
            entry["user"]["username"],
            what.get("namespace", ""),
            what.get("name", ""),
            (entry.get("responseStatus") or {}).get("code", 0),
            _opens(entry.get("requestObject")),
        )


def _opens(body: object) -> bool | None:
    if not isinstance(body, list):
        return None
    return any(
        each.get("op") == "remove" and str(each.get("path")).startswith("/spec/schedulingGates")
        for each in body
        if isinstance(each, dict)
    )


def _may_have_happened(status: int) -> bool:
    """Tell whether a write with this answer may be in the store; a 5xx may."""
    return status < 300 or status >= 500
