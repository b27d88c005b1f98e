"""Limit of refusals in the audit chain: a flood of one user must not push out other entries.

A user chooses parts of a refused request, so each refusal may be a new entry. The first
refusals of a user in a namespace are recorded one by one. One more entry counts the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from app.core.admission.submitters import limit_name
from app.core.audit_entry import AuditRecord, EntryType, Fact
from app.core.model import Millis

WINDOW_MS = 600_000
"""Time after which a user may cause entries again."""

MOST_REFUSALS = 30
"""Refusals of one user in one namespace that a window records one by one."""

MOST_SOURCES = 1_000
"""Users and namespaces with a window of their own. All others share one: reviews may be forged."""

TOO_MANY = (
    f"within {WINDOW_MS // 60_000} min only the first {MOST_REFUSALS} refusals of a user in a "
    "namespace are recorded one by one"
)

_Source = tuple[str, str]
"""Namespace, and the name of a user for limits."""

_OTHERS = "", ""


@dataclass(slots=True)
class _Window:
    begin: Millis
    recorded: int = 0
    left_out: int = 0


class RefusalLimit:
    """The refusals of each user in the present window."""

    def __init__(self) -> None:
        self._windows: dict[_Source, _Window] = {}

    def admit_refusal(self, facts: Mapping[str, Fact], now: Millis) -> bool:
        """Return whether a refusal is recorded by itself. If not, it is counted."""
        source = str(facts.get("namespace", "")), limit_name(str(facts.get("user", "")))
        if source not in self._windows and len(self._windows) >= MOST_SOURCES:
            source = _OTHERS
        window = self._windows.setdefault(source, _Window(now))
        if window.recorded < MOST_REFUSALS:
            window.recorded += 1
            return True
        window.left_out += 1
        return False

    def end_windows(self, now: Millis, *, early: bool = False) -> Iterator[AuditRecord]:
        """Remove the windows that are over, or all if `early`. Yield an entry for each count."""
        for source, window in list(self._windows.items()):
            if not early and window.begin <= now < window.begin + WINDOW_MS:
                continue
            del self._windows[source]
            if window.left_out:
                namespace, user = source
                facts: dict[str, Fact] = {
                    "user": user,
                    "namespace": namespace,
                    "dropped": window.left_out,
                    "why": TOO_MANY,
                }
                yield AuditRecord(now, EntryType.REFUSED, facts)
