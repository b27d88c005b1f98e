"""Tables of the API's lists. Each function returns a table, or a sentence for an empty list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from app.kubectl import audit_entries, formatting
from app.terminal.table import Column, FittedTable
from app.terminal.text import Block, Group, Text

Item = Mapping[str, Any]


def queues(
    found: Sequence[Item], wide: bool, now: datetime, *, several: bool, what: str = "Nothing"
) -> Block | str:
    """Show queued workloads. `several`: of several tenants, so each row names its tenant.

    `what`: the subject of the sentence for an empty list.
    """
    if not any(each["items"] for each in found):
        if several:
            return f"{what} waits."
        return f"{what} waits in tenant {found[0]['tenant']}."
    columns = [
        *([Column("TENANT", short=True, drop=2)] if several else []),
        Column("USER", short=True, drop=1),
        Column("PLACE", right=True),
        Column("POD"),
        Column("ASKS", wraps=True, drop=3),
        Column("FOR", right=True, drop=4),
        Column("HELD BACK BY", wraps=True),
        Column("STARTS IN", right=True),
        *([Column("PRIORITY", right=True), Column("POOLS"), Column("REASON")] if wide else []),
    ]
    rows = [
        ((queue["tenant"],) if several else ()) + _waiting(each, wide, now)
        for queue in found
        for each in queue["items"]
    ]
    return FittedTable(columns, rows, is_full=wide)


def _waiting(item: Item, wide: bool, now: datetime) -> tuple[str, ...]:
    place = f"{item['position']}/{item['length']}" if item["position"] else formatting.NOTHING
    request = item["request"] or {}  # null while the replica has not seen the pod
    row = (
        item["user"],
        place,
        pod(item),
        formatting.amounts(request) if wide else formatting.devices(request),
        formatting.age(item["since"], now),
        item["rule"] or formatting.NOTHING,
        formatting.estimate(item["estimate"], now),
    )
    if not wide:
        return row
    return (
        *row,
        f"{item['priority']}",
        ",".join(item["pools"] or ()) or formatting.NOTHING,
        item["reason"] or formatting.NOTHING,
    )


def pod(item: Item) -> str:
    """Return the name of a workload: its first pod, and the number of further pods."""
    more = f" +{item['pods'] - 1}" if item["pods"] > 1 else ""
    return f"{item['namespace']}/{item['name']}{more}"


def mine(found: Item, wide: bool, now: datetime) -> Block | str:
    """Show the caller's workloads, and its use and fair share in each tenant."""
    if not found["tenants"] and not found["workloads"]:
        return f"User {found['name']} has no pods that Fairgate holds or has released."
    lines: list[Block | str] = []
    if found["workloads"]:
        rows = [_own(each, wide, now) for each in found["workloads"]]
        lines += [FittedTable(_OWN_WIDE if wide else _OWN_WIDE[:4], rows, is_full=wide), ""]
    else:
        lines += ["You have no such pods.", ""]
    if found["leftOut"]:
        lines += [f"The list leaves out {formatting.count(found['leftOut'], 'further pod')}.", ""]
    shares = [_own_share(each) for each in found["tenants"]]
    lines.append(FittedTable(_OWN_SHARES, shares, is_full=wide))
    return Group(*lines)


_OWN_WIDE = (
    Column("POD"),
    Column("PLACE", right=True),
    Column("HELD BACK BY", wraps=True),
    Column("STARTS IN", right=True),
    Column("TENANT"),
    Column("ASKS"),
    Column("FOR", right=True),
    Column("REASON"),
)
_OWN_SHARES = (
    Column("TENANT", short=True),
    Column("YOU USE", right=True),
    Column("FAIR SHARE", right=True),
    Column("PENDING", right=True),
    Column("AMOUNTS", wraps=True),
)


def _own(item: Item, wide: bool, now: datetime) -> tuple[str, ...]:
    _, place, name, asks, age, rule, starts, *rest = _waiting(item, wide, now)
    row = (name, place, formatting.NOTHING if item["state"] == "released" else rule)
    starts = "released" if item["state"] == "released" else starts
    return (*row, starts, item["tenant"], asks, age, rest[-1]) if wide else (*row, starts)


def _own_share(item: Item) -> tuple[str, ...]:
    return (
        item["tenant"],
        f"{item['used'] * 100:.1f} %",
        f"{item['fairShare'] * 100:.1f} %",
        str(item["pending"]),
        formatting.in_pools(item["amounts"]),
    )


def tenants(items: Sequence[Item], wide: bool) -> Block | str:
    """Show tenants as a tree."""
    if not items:
        return "There are no tenants yet: no pod requested GPUs, and no Tenant is configured."
    rows = [_tenant(each, depth, wide) for each, depth in tree(items)]
    return FittedTable(_TENANTS_WIDE if wide else _TENANTS_WIDE[:6], rows, is_full=wide)


_TENANTS_WIDE = (
    Column("TENANT", short=True),
    Column("WEIGHT", right=True, drop=1),
    Column("SHARE", right=True),
    Column("USED", wraps=True),
    Column("BORROWED", wraps=True, drop=2),
    Column("PENDING", right=True),
    Column("WEIGHTED", right=True),
    *map(Column, ("GUARANTEE", "LIMIT", "NAMESPACES", "USERS", "")),
)


def _tenant(item: Item, depth: int, wide: bool) -> tuple[str, ...]:
    row = (
        "  " * depth + item["name"],
        item["weight"],
        formatting.percent(item["share"]),
        formatting.in_pools(item["used"]),
        formatting.in_pools(item["borrowed"]),
        str(item["pending"]),
    )
    if not wide:
        return row
    quotas = {
        part: formatting.in_pools({q["pool"]: q[part] for q in item["quotas"]})
        for part in ("guarantee", "limit")
    }
    return (
        *row,
        formatting.percent(item["weightedShare"]),
        quotas["guarantee"],
        quotas["limit"],
        ", ".join(item["namespaces"]) or formatting.NOTHING,
        weights_of(item["users"]),
        "paused" if item["paused"] else "",
    )


def weights_of(users: Sequence[Item]) -> str:
    """Return the users with a configured weight, in one line."""
    return ", ".join(f"{each['name']} {each['weight']}" for each in users) or formatting.NOTHING


def tree(items: Sequence[Item]) -> list[tuple[Item, int]]:
    """Return all tenants with their depth, children after their parents."""
    names = {each["name"] for each in items}
    under: dict[str | None, list[Item]] = {}
    for each in items:
        parent = each["parent"] if each["parent"] in names else None
        under.setdefault(parent, []).append(each)
    rows: list[tuple[Item, int]] = []

    def walk(parent: str | None, depth: int) -> None:
        for each in under.pop(parent, ()):
            rows.append((each, depth))
            walk(each["name"], depth + 1)

    walk(None, 0)
    while under:  # parents that form a cycle
        walk(next(iter(under)), 0)
    return rows


def pools(items: Sequence[Item], wide: bool) -> Block | str:
    """Show pools: capacity, used and free amounts."""
    if not items:
        return "There are no pools yet: no ready node offers a managed resource."
    columns = [
        Column("POOL", short=True),
        Column("NODES", right=True, drop=2),
        Column("CAPACITY", wraps=True, drop=1),
        Column("USED", wraps=True),
        Column("FREE", wraps=True),
        Column(""),
        *([Column("PLACEMENT"), Column("NODE SELECTOR")] if wide else []),
    ]
    return FittedTable(columns, [_pool(each, wide) for each in items], is_full=wide)


def _pool(item: Item, wide: bool) -> tuple[str, ...]:
    row = (
        item["name"],
        str(item["nodes"]),
        formatting.amounts(item["capacity"]),
        formatting.amounts(item["used"]),
        formatting.amounts(item["free"]),
        "paused" if item["paused"] else "",
    )
    if not wide:
        return row
    selector = ",".join(f"{k}={v}" for k, v in item["nodeSelector"].items())
    return (*row, item["placement"], selector or formatting.NOTHING)


def usage(answer: Item, by: Sequence[str], wide: bool) -> Block | str:
    """Show usage in hours of each resource; `wide`: also in exact seconds."""
    begin, end = answer["from"], formatting.day(answer["to"])
    span = f"from {formatting.day(begin)} to {end}" if begin else f"until {end}"
    items: Sequence[Item] = answer["items"]
    if not items:
        return f"Nothing was used {span}."
    resources = sorted({r for each in items for r in each["resourceSeconds"]})
    units = ("HOURS", "SECONDS") if wide else ("HOURS",)
    columns = [Column(each.upper(), short=each not in ("workload", "node")) for each in by]
    heads = [f"{formatting.short(r, resources).upper()} {u}" for r in resources for u in units]
    columns += [Column(each, right=True) for each in heads]
    rows = [_used(each, by, resources, wide) for each in items]
    table = FittedTable(columns, rows, is_full=wide)
    lines: list[Block | str] = [table, Text(f"{span[0].upper()}{span[1:]}.", "dim")]
    since = answer["completeSince"]
    if begin and since is not None and formatting.moment(since) > formatting.moment(begin):
        lines.append(f"What ran before {formatting.day(since)} may be missing.")
    return Group(*lines)


def _used(item: Item, by: Sequence[str], resources: Sequence[str], wide: bool) -> tuple[str, ...]:
    seconds = [item["resourceSeconds"].get(r, "0") for r in resources]
    names = [item.get(each) or formatting.NOTHING for each in by]
    hours = [formatting.hours(each) for each in seconds]
    both = zip(hours, seconds, strict=True)
    return (*names, *(chain.from_iterable(both) if wide else hours))


def shares(items: Sequence[Item], wide: bool) -> Block | str:
    """Show fair share, use and weight of tenants. Shares are parts of the cluster."""
    if not items:
        return "There are no tenants yet: no pod requested GPUs, and no Tenant is configured."
    columns = (
        Column("TENANT", short=True),
        Column("WEIGHT", right=True),
        Column("FAIR SHARE", right=True),
        Column("SHARE", right=True),
        Column("USED", wraps=True, drop=2),
        Column("PENDING", right=True, drop=1),
        *([Column("USERS")] if wide else []),
    )
    rows = [
        (
            "  " * depth + each["name"],
            each["weight"],
            formatting.percent(each.get("fairShare")),
            formatting.percent(each["share"]),
            formatting.in_pools(each["used"]),
            str(each["pending"]),
            *([weights_of(each["users"])] if wide else []),
        )
        for each, depth in tree(items)
    ]
    return FittedTable(columns, rows, is_full=wide)


def user_shares(tenant: str, items: Sequence[Item], wide: bool) -> Block | str:
    """Show fair share, use and weight of a tenant's users. Shares are parts of the cluster."""
    if not items:
        return f"Tenant {tenant} has no users yet: no work was submitted, and no weight is set."
    columns = (
        Column("USER", short=True),
        Column("WEIGHT", right=True),
        Column("FAIR SHARE", right=True),
        Column("SHARE", right=True),
        Column("USED", wraps=True, drop=2),
        Column("PENDING", right=True, drop=1),
    )
    rows = [
        (
            each["name"],
            each["weight"],
            formatting.percent(each.get("fairShare")),
            formatting.percent(each.get("share")),
            formatting.in_pools(each["used"]),
            str(each["pending"]),
        )
        for each in items
    ]
    return FittedTable(columns, rows, is_full=wide)


def quotas(items: Sequence[Item], wide: bool) -> Block | str:
    """Show guarantee, limit and use by tenant and pool, and the use of users if they are there."""
    if not items:
        return "There are no quotas and no use: no Tenant is configured, and no pod was released."
    has_users = any("user" in each for each in items)
    columns = (
        Column("TENANT", short=True),
        *([Column("USER", short=True)] if has_users else []),
        Column("POOL", short=True),
        Column("GUARANTEE", wraps=True),
        Column("LIMIT", wraps=True),
        Column("USED", wraps=True),
        Column("BORROWED", wraps=True, drop=1),
        Column("PENDING", right=True, drop=2),
    )
    rows, before = [], None
    for each in items:
        whose = (each["tenant"], each.get("user"))
        rows.append(_quota(each, has_users, is_first=whose != before))
        before = whose
    return FittedTable(columns, rows, is_full=wide)


def _quota(item: Item, has_users: bool, *, is_first: bool) -> tuple[str, ...]:
    """Return a row. Pods wait in no single pool, so only the first pool has their number."""
    pending = item["pending"]
    shown = formatting.NOTHING if pending is None else str(pending)
    return (
        item["tenant"],
        *([item["user"] or "(all)"] if has_users else []),
        item["pool"] or formatting.NOTHING,
        *(formatting.amounts(item[key]) for key in ("guarantee", "limit", "used", "borrowed")),
        shown if is_first else "",
    )


def audit(items: Sequence[Item], wide: bool) -> Block | str:
    """Show entries of the audit chain, the newest last."""
    if not items:
        return "There are no such entries; --since 7d also reads older ones."
    columns = (
        Column("TIME"),
        Column("TYPE"),
        Column("TENANT", short=True, drop=3),
        Column("USER", short=True, drop=2),
        Column("OBJECT"),
        Column("DETAIL", wraps=True, drop=1),
    )
    rows = [
        (
            f"{formatting.moment(each['at']).astimezone():%m-%d %H:%M:%S}",
            each["type"],
            each["tenant"] or formatting.NOTHING,
            each["user"] or formatting.NOTHING,
            "/".join(filter(None, (each["namespace"], each["name"]))) or formatting.NOTHING,
            audit_entries.detail(each, wide),
        )
        for each in items
    ]
    return FittedTable(columns, rows, is_full=wide)


def versions(found: Item) -> Block | str:
    """Show the versions of client and server."""
    advice = {
        "none": "The versions are equal.",
        "supported": "The versions differ by one minor version at most, which is supported.",
        "unsupported": "The versions differ too much: install the plugin of the server's release.",
        "unknown": "The versions cannot be compared.",
    }
    rows = [("client", found["client"]), ("server", found["server"])]
    return Group(FittedTable((Column(""), Column("")), rows), advice[found["skew"]])
