"""Prints the findings of `fairgate doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from app.commands.doctor.findings import Finding, Level, count
from app.core.safe_text import escape_hidden
from app.terminal.output import Listing

ORDER = (Level.PROBLEM, Level.WARNING, Level.OK)


def has_problem(findings: Iterable[Finding]) -> bool:
    """Return whether a finding is a problem."""
    return any(each.level is Level.PROBLEM for each in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return one line for each finding, problems first, and a summary."""
    lines = [each.line for level in ORDER for each in findings if each.level is level]
    problems, warnings = (_number(findings, level) for level in ORDER[:2])
    summary = f"{count(problems, 'problem')}, {count(warnings, 'warning')}."
    if problems or warnings:
        summary += " fairgate doctor -o values prints values of the chart for this cluster."
    return "\n".join(map(escape_hidden, [*lines, summary])) + "\n"


def as_document(findings: Sequence[Finding], values: dict[str, Any]) -> dict[str, Any]:
    """Return findings and values for programs. The keys are stable."""
    return {
        "problems": _number(findings, Level.PROBLEM),
        "warnings": _number(findings, Level.WARNING),
        "findings": [
            {
                "check": each.check.value,
                "level": each.level.value,
                "message": each.message,
                "remedy": each.remedy,
                "objects": list(each.objects),
            }
            for each in findings
        ],
        "values": values,
    }


FINDINGS = Listing(itemgetter("findings"), no_name="a finding is about several objects")


def _number(findings: Iterable[Finding], level: Level) -> int:
    return sum(each.level is level for each in findings)
