"""Text output of `why`, of `simulate`, and of a dry run of `weights set`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.kubectl import formatting
from app.kubectl.related_pods import JOBSET_LABEL
from app.kubectl.tables import pod
from app.terminal.table import Column, FittedTable
from app.terminal.text import Block, Group, Text

Item = Mapping[str, Any]

SHOWN_NUMBERS = ("tenant", "pool", "first", "its score", "own score")
"""Numbers that the reason or the line `ahead` already contains."""


UNMANAGED = (
    "Fairgate does not hold the unmanaged pods: they request no managed resource, or were created "
    "before Fairgate enforced."
)


def why(item: Item, wide: bool, now: datetime) -> Block | str:
    """Return why a pod waits, until when, and the remedies; or that it does not wait."""
    full = f"{item['namespace']}/{item['name']}"
    if item["state"] != "held":
        return f"Pod {full} waits no longer: {item['reason']}."
    lines: list[Block | str] = [
        Text(_opening(item, full), "bold"),
        _facts(item, wide, now),
    ]
    if item["remedies"]:
        lines += ["", Text("What would change it:", "bold")]
        lines += [bullet(each) for each in item["remedies"]]
    return Group(*lines)


def explain_several(found: Item, wide: bool, now: datetime) -> Block | str:
    """Return counts of pods by state, and why the first held pod of each rule waits."""
    space = found["namespace"]
    where = f"{found['source']} in " + (f"namespace {space}" if space else "all namespaces")
    states = ("held", "released", "finished", "unmanaged")
    counts = [f"{found[state]} {state}" for state in states if found[state]]
    if not counts:
        return f"There are no pods of {where}{_no_pods(found['source'], space)}."
    lines: list[Block | str] = [Text(f"Pods of {where}: {', '.join(counts)}.")]
    if found["unmanaged"]:
        lines.append(UNMANAGED)
    for each in found["items"]:
        lines += ["", why(each, wide, now)]
    if found["notAsked"]:
        rest = formatting.count(found["notAsked"], "more held pod")
        lines += ["", f"Fairgate did not look at {rest}."]
    return Group(*lines)


def _no_pods(source: str, namespace: str | None) -> str:
    """Return why an object may have no pods, and where their refusals are; "" for labels."""
    kind, slash, name = source.partition("/")
    if source.startswith("-l ") or not slash or namespace is None:
        return ""
    what, absent = source.replace("/", " "), ""
    if kind == "jobset":  # its pods are found by its name alone
        what = f"job -l {JOBSET_LABEL}={name}"
        absent = "it does not exist there (check the name and -n NAMESPACE), "
    return (
        f": {absent}it created none yet, or they were deleted; if they were "
        f"refused, kubectl describe {what} -n {namespace} shows the reason"
    )


def _opening(item: Item, full: str) -> str:
    what = f"Pod {full}"
    if item["gang"] is not None:
        what = f"Gang {item['namespace']}/{item['gang']} ({formatting.count(item['pods'], 'pod')})"
    if not item["position"]:
        return f"{what} waits, in no queue yet."
    place = f"{item['position']} of {item['length']}"
    return f"{what} waits: {place} in the queue of {item['tenant']}/{item['user']}."


def _facts(item: Item, wide: bool, now: datetime) -> Block | str:
    pools = " or ".join(item["pools"])
    asks = formatting.amounts(item["request"]) + (f" of pool {pools}" if pools else "")
    rows = [
        ("held back by", item["rule"]),
        ("reason", item["reason"]),
        ("asks for", asks),
        ("held for", formatting.age(item["since"], now)),
        ("starts", _estimate(item, now)),
        *(("ahead", ahead(each)) for each in item["ahead"]),
    ]
    if wide:
        rows += [
            ("priority", str(item["priority"])),
            ("first pod", pod(item)),
            ("uid", item["uid"]),
        ]
    rows += [(name, value) for name, value in item["numbers"].items() if name not in SHOWN_NUMBERS]
    return fact_table(rows)


def _estimate(item: Item, now: datetime) -> str:
    value = item["estimate"]
    if value is None:
        return f"not known: {item['estimateWithheld'] or 'an estimate would be a guess.'}"
    if value["p90"] <= (now - formatting.moment(value["at"])).total_seconds():
        return "any moment; it was likely to have started by now"
    half, most = (formatting.clock(value, part, now) for part in ("p50", "p90"))
    return f"in {formatting.estimate(value, now)} (even chance by {half}, nine in ten by {most})"


def ahead(each: Item) -> str:
    # An API of the minor version before has no `reason`.
    scores = f"{each['tenant']}: {each['score']} against {each['ownScore']} of {each['own']}"
    return str(each.get("reason", scores))


def fact_table(rows: list[tuple[str, str]]) -> FittedTable:
    return FittedTable((Column("", dim=True), Column("", wraps=True)), rows)


def bullet(sentence: str) -> FittedTable:
    return FittedTable((Column(""), Column("", wraps=True)), [("  *", sentence)], gap=1)


def simulation(answer: Item, wide: bool) -> Block | str:
    """Return the effect of a change of weights: values without and with it."""
    head = Text(
        f"{formatting.count(answer['pods'], 'pending pod')}, "
        f"run {formatting.number(str(answer['hours']))} h "
        f"forward as things are, and with the change ({answer['seconds']:.1f} s). "
        f"{answer['assumed']}"
    )
    if not answer["tenants"]:
        return Group(head, "No tenant that you may see would be affected.")
    more = ("STARTED", "P90 WAIT") if wide else ()
    columns = [Column("TENANT", short=True)]
    columns += [Column(each, right=True) for each in ("WEIGHT", "SHARE", "MEAN WAIT", *more)]
    rows = [_foreseen(each, wide) for each in answer["tenants"]]
    table = FittedTable(columns, rows, is_full=wide)
    if any(each["now"] != each["then"] for each in answer["tenants"]):
        return Group(head, "", table)
    return Group(head, "", table, "Between tenants nothing would change.")


def _foreseen(item: Item, wide: bool) -> tuple[str, ...]:
    now, then = item["now"], item["then"]
    row = (
        item["tenant"],
        _both(item["weightNow"], item["weightThen"]),
        _both(formatting.percent(now["share"]), formatting.percent(then["share"])),
        _both(formatting.span(now["waitMeanSeconds"]), formatting.span(then["waitMeanSeconds"])),
    )
    if not wide:
        return row
    return (
        *row,
        _both(*(f"{each['started']}/{each['pending']}" for each in (now, then))),
        _both(formatting.span(now["waitP90Seconds"]), formatting.span(then["waitP90Seconds"])),
    )


def change(who: str, weight: str, answer: Item) -> Block | str:
    """Return the result of a dry run of a weight."""
    head = Text(f"{who} would weigh {weight}; nothing was changed.")
    if not answer["shares"]:
        return Group(head, "No share would change.")
    columns = (Column("WHO"), Column("SHARE BY WEIGHT", right=True))
    rows = [
        (
            each["tenant"] + (f"/{each['user']}" if each["user"] is not None else ""),
            _both(formatting.percent(each["before"]), formatting.percent(each["after"])),
        )
        for each in answer["shares"]
    ]
    return Group(head, "", FittedTable(columns, rows))


def _both(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"
