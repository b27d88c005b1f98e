"""Reports of the watchdog: failures in the log, and restores to operators and the audit chain."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from app.core.audit_entry import EntryType, Fact
from app.core.errors import ClusterError
from app.kube.enforcement_apply import OURS
from app.kube.enforcement_spec import Object, Ref, last_writer
from app.kube.event_recorder import EnforcementAlarm
from app.ports.audit import Reporter
from app.ports.metrics import EnforcementMetrics

log = logging.getLogger("fairgate.kube")

LOG_SECONDS = 60.0
"""Interval in which a failure that lasts is logged again, with its current reason."""

DELETED = "deleted"
"""The difference of an object that does not exist."""

MAX_DIFFERENCES_LENGTH = 300
"""Maximum length in characters of the differences in an audit entry."""


class EnforcementReports:
    """Reports failures and restores of one watchdog."""

    def __init__(
        self,
        meters: EnforcementMetrics,
        alarm: EnforcementAlarm,
        reporter: Reporter | None,
        after_restore: Callable[[], None],
    ) -> None:
        """`after_restore`: called after each restore of an object that another client changed."""
        self._meters = meters
        self._alarm = alarm
        self._reporter = reporter
        self._after_restore = after_restore
        self.failures: dict[str, str] = {}
        """The reason of each step that failed when it was last tried."""
        self._log_at: dict[str, float] = {}
        self._alarms: dict[str, str] = {}  # events that are not emitted yet, by subject

    def record_failure(self, what: str, error: ClusterError) -> None:
        """Record that a step failed. Log it now if that was not done for a minute."""
        self.failures[what] = str(error)
        now = time.monotonic()
        is_due = now >= self._log_at.get(what, now)
        if is_due:
            self._log_at[what] = now + LOG_SECONDS
        level = logging.ERROR if is_due else logging.DEBUG
        log.log(level, "cannot be kept in force", extra={"what": what, "why": str(error)})

    def record_success(self, what: str) -> None:
        """Record that a step succeeded. The next failure is logged at once."""
        self.failures.pop(what, None)
        self._log_at.pop(what, None)

    def report_restore(self, ref: Ref, live: Object | None, what: list[str]) -> None:
        """Report that another client changed an object and that it was restored."""
        who = last_writer(live, OURS) if live is not None else "see the audit log of the API server"
        facts = {"kind": ref.kind, "object": ref.name, "what": what, "who": who}
        log.warning("enforcement was touched, and put back", extra=facts)
        self._meters.count_restore(ref.kind)
        if self._reporter is not None:
            done: dict[str, Fact] = {"kind": ref.kind, "name": ref.name, "manager": who}
            done["what"] = ", ".join(what)[:MAX_DIFFERENCES_LENGTH]
            self._reporter.report(EntryType.RESTORED, done)
        self._after_restore()
        told = f"{ref}: {', '.join(what)}"
        self._alarms[told] = f"Somebody touched {told} ({who}); it has been put back."

    def report_removal(self, what: str) -> None:
        """Log that a deleted object is not restored."""
        log.warning(
            "a deleted object is not restored: Fairgate is uninstalled", extra={"what": what}
        )

    async def emit_events(self) -> bool:
        """Emit the events about restores. Return whether there were any."""
        alarms, self._alarms = self._alarms, {}
        for told, message in alarms.items():
            await self._alarm.emit("EnforcementRestored", told, message)
        return bool(alarms)
