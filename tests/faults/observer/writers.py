"""Checks which users removed gates, by the API server's audit log (I2).

The log names the user of each write to a pod, and sometimes the content. A killed API server may
have stored a write without logging it. Such a write is seen right after the observer's own
connections broke.
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
    """A write to a pod itself. `opens`: it removes the gate; None if the log does not show it."""

    user: str
    namespace: str
    name: str
    status: int
    opens: bool | None


def read(path: Path, start: int = 0) -> list[Write]:
    """Return the writes to pods in the complete lines of an audit log after `start` bytes.

    A log with fewer bytes is a new one.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        lines.seek(start if start <= path.stat().st_size else 0)
        return list(_writes(lines))


def judge(
    releases: Iterable[Release], log: Iterable[Write], writer: str, cuts: Iterable[float] = ()
) -> list[str]:
    """Return the releases without a permitted writer, one sentence each.

    `cuts` are the times at which connections to the API server broke.
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
            continue  # the last line may be incomplete
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
    """Return whether a write with this status may have been stored. A 5xx may."""
    return status < 300 or status >= 500
