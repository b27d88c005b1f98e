"""Text output of `try`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from app.kubectl import formatting
from app.kubectl.explain import SHOWN_NUMBERS, ahead, bullet, fact_table
from app.terminal.table import Column, FittedTable
from app.terminal.text import Block, Group, Text

Item = Mapping[str, Any]


def trials(found: Item, now: datetime) -> Block | str:
    """Return the result for each object."""
    lines: list[Block | str] = []
    for each in found["items"]:
        lines += ["", *_lines(each, now)] if lines else _lines(each, now)
    if found["skipped"]:
        objects = formatting.count(found["skipped"], "object")
        lines += ["", f"{objects} of other kinds: not tested."]
    return Group(*lines)


def comparison(found: Item, wide: bool, now: datetime) -> Block | str:
    """Return a table with a row for each context and object."""
    table = FittedTable(_CONTEXTS, [_row(each, now) for each in found["items"]], is_full=wide)
    reasons = [
        f"{each['context']}: {each.get('error') or each['refusal']}"
        for each in found["items"]
        if not each["accepted"]
    ]
    return Group(table, *(["", *reasons] if reasons else []))


_CONTEXTS = (
    Column("CONTEXT"),
    Column("OBJECT", short=True, drop=1),
    Column("ACCEPTED", wraps=True),
    Column("TENANT", short=True, drop=2),
    Column("POOL", wraps=True, drop=3),
    Column("NOW", right=True),
    Column("STARTS IN", right=True),
    Column("HELD BACK BY", wraps=True, drop=4),
)


def _row(item: Item, now: datetime) -> tuple[str, ...]:
    trial = item["trial"]
    name = item["object"].rpartition(" ")[2] or formatting.NOTHING
    accepted = {True: "yes", False: "no", None: "not known"}[item["accepted"]]
    if trial is None:
        return (item["context"], name, accepted, *[formatting.NOTHING] * 5)
    return (
        item["context"],
        name,
        accepted,
        trial["tenant"],
        ",".join(trial["pools"]) or formatting.NOTHING,
        f"{trial['startsNow']}/{trial['pods']}",
        _short_start(trial, now),
        trial["rule"] or formatting.NOTHING,
    )


def _short_start(trial: Item, now: datetime) -> str:
    if trial["state"] != "waits":
        return "now"
    if trial["estimate"] is not None:
        return formatting.estimate(trial["estimate"], now)
    if trial["simulatedSeconds"] is None:
        return "not known"
    return f"about {formatting.span(trial['simulatedSeconds'])}"


def _lines(item: Item, now: datetime) -> list[Block | str]:
    name, trial = item["object"], item["trial"]
    notes: list[Block | str] = [Text(f"Note: {each}") for each in item["notes"]]
    if not item["accepted"]:
        return [Text(f"{name} is refused: {item['refusal']}", "bold"), *notes]
    head = Text(f"{name} is accepted{_outcome(trial)}", "bold")
    if trial is None or trial["state"] == "unmanaged":
        return [head, *notes]
    lines: list[Block | str] = [head, fact_table(_facts(trial, now)), *notes]
    if trial["remedies"]:
        lines += ["", Text("Remedies, for an earlier start:", "bold")]
        lines += [bullet(each) for each in trial["remedies"]]
    return lines


def _outcome(trial: Item | None) -> str:
    if trial is None:
        return "; its start is not known."
    if trial["state"] == "unmanaged":
        return f". {trial['reason']}"
    if trial["state"] == "fits":
        return " and fits now: it would start at once."
    pods = formatting.count(trial["pods"], "pod")
    if trial["startsNow"]:
        return f" and would wait: {trial['startsNow']} of its {pods} would start at once."
    return f" and would wait ({pods})."


def _facts(trial: Item, now: datetime) -> list[tuple[str, str]]:
    pools = " or ".join(trial["pools"])
    asks = formatting.amounts(trial["request"]) + (f" of pool {pools}" if pools else "")
    rows = [("tenant", trial["tenant"]), ("asks for", asks)]
    if trial["state"] != "waits":
        return rows
    rows += [("held back by", trial["rule"]), ("reason", trial["reason"])]
    rows += [("starts", text) for text in _starts(trial, now)]
    rows += [("ahead", ahead(each)) for each in trial["ahead"]]
    rows += [(name, value) for name, value in trial["numbers"].items() if name not in SHOWN_NUMBERS]
    return rows


def _starts(trial: Item, now: datetime) -> Iterable[str]:
    """Yield the estimate, or else the result of the simulation and its assumptions."""
    value = trial["estimate"]
    if value is not None:
        half, most = (formatting.clock(value, part, now) for part in ("p50", "p90"))
        yield f"in {formatting.estimate(value, now)} (even chance by {half}, nine in ten by {most})"
    elif trial["simulatedSeconds"] is None:
        yield f"not known: {trial['estimateWithheld']}"
    else:
        last = "the last one " if trial["startsNow"] else ""
        wait = formatting.span(trial["simulatedSeconds"])
        yield f"{last}after {wait} in a simulation. {trial['assumed']}"
