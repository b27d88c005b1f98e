"""Implementation of `shares`, `quotas`, `audit`, `version` and `open`."""

from __future__ import annotations

import re
import threading
import webbrowser
from datetime import datetime, timezone
from typing import Any

from app.core.errors import ClusterRefused, InvalidInput
from app.kubectl import arguments, audit_entries, tables
from app.kubectl.audit_entries import AuditFilter
from app.kubectl.client import ApiAnswer, ApiClient, segment
from app.kubectl.commands import FORBIDDEN, ITEMS, TENANTS, USERS, advice_if_forbidden
from app.kubectl.output import show
from app.terminal.output import Listing, OutputOptions, warn

GONE = 404

QUOTAS = Listing(ITEMS, lambda item: f"tenant.fairgate.io/{item['tenant']}")
ENTRIES = Listing(ITEMS, no_name="an entry of the audit chain has only a number")


def shares(client: ApiClient, output: OutputOptions, tenant: str | None) -> None:
    """Show fair share, use and weight of tenants, or of one tenant's users."""
    if tenant is None:
        with advice_if_forbidden("One tenant: shares TENANT."):
            show(
                output,
                lambda: client.list_pages("/tenants"),
                lambda found, _: tables.shares(found["items"], output.wide),
                TENANTS,
            )
        return
    show(
        output,
        lambda: client.list_pages(f"/tenants/{segment(tenant)}/users"),
        lambda found, _: tables.user_shares(tenant, found["items"], output.wide),
        USERS,
    )


def quotas(client: ApiClient, output: OutputOptions, tenant: str | None, at: str | None) -> None:
    """Show limits and use of all tenants by pool, or of one tenant and its users."""
    if tenant is not None and at is not None:
        raise InvalidInput("Quotas of the past are read for all tenants: leave out TENANT or --at.")
    query = [] if at is None else [("at", arguments.time(at, datetime.now(timezone.utc)))]

    def fetch() -> tuple[Any, ApiAnswer]:
        if tenant is None:
            with advice_if_forbidden("" if query else "One tenant: quotas TENANT."):
                return client.list_pages("/quotas", query)
        return _quotas_of(client, tenant)

    show(output, fetch, lambda found, _: tables.quotas(found["items"], output.wide), QUOTAS)


def _quotas_of(client: ApiClient, tenant: str) -> tuple[Any, ApiAnswer]:
    """Return a row for each pool of a tenant, then the use of each user in each pool.

    A tenant or user that only waits has one row, with pool None.
    """
    path = f"/tenants/{segment(tenant)}"
    answer = client.get(path)
    found = answer.as_object()
    limits = {each["pool"]: each for each in found["quotas"]}
    rows = [
        {
            "tenant": tenant,
            "user": None,
            "pool": pool,
            "guarantee": limits.get(pool, {}).get("guarantee", {}),
            "limit": limits.get(pool, {}).get("limit", {}),
            "used": found["used"].get(pool, {}),
            "borrowed": found["borrowed"].get(pool, {}),
            "pending": found["pending"],
        }
        for pool in sorted({*limits, *found["used"]}) or _no_pool(found)
    ]
    empty: dict[str, Any] = {"guarantee": {}, "limit": {}, "borrowed": {}}
    try:
        users, answer = client.list_pages(f"{path}/users")
    except ClusterRefused as error:
        if error.status != FORBIDDEN:
            raise
        warning = f"you may not see the users of {tenant}; its own quotas are shown."
        return {"items": rows}, answer.with_warning(warning)
    rows += [
        {"tenant": tenant, "user": each["name"], "pool": pool, **empty, "used": used,
         "pending": each["pending"]}
        for each in users["items"]
        for pool, used in sorted(each["used"].items()) or [(pool, {}) for pool in _no_pool(each)]
    ]  # fmt: skip
    return {"items": rows}, answer


def _no_pool(item: Any) -> list[None]:
    """Return the pool of the only row of a tenant or user that only waits."""
    return [None] if item["pending"] else []


def audit(
    client: ApiClient,
    output: OutputOptions,
    wanted: AuditFilter,
    span: tuple[str, str | None],
    limit: int,
) -> None:
    """Show the newest entries of the audit chain."""
    if wanted.kind is not None and wanted.kind not in audit_entries.TYPES:
        known = ", ".join(audit_entries.TYPES)
        raise InvalidInput(f"--type {wanted.kind[:40]} does not exist; write one of {known}.")
    given = [arguments.time(each, datetime.now(timezone.utc)) if each else None for each in span]

    def fetch() -> tuple[Any, ApiAnswer]:
        begin, end = (None if each is None else _moment(each) for each in given)
        until = end or datetime.now(timezone.utc) + audit_entries.MORE
        if begin is None or begin >= until:
            raise InvalidInput("--since is not before --until, so the list is empty.")
        return audit_entries.newest(client, wanted, (begin, until), limit)

    show(output, fetch, lambda found, _: tables.audit(found["items"], output.wide), ENTRIES)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(re.sub("Z$", "+00:00", text))


def server_version(client: ApiClient, output: OutputOptions, installed: str) -> None:
    """Show the versions of client and server, and whether they fit."""

    def fetch() -> tuple[Any, ApiAnswer]:
        try:
            answer = client.get("/version")
            server = answer.as_object()["version"]
        except ClusterRefused as error:
            if error.status != GONE or "no Fairgate API" in str(error):
                raise
            raise ClusterRefused(
                f"The server does not report its version, so it is older than this client "
                f"({installed}); upgrade it, or use the plugin of its release.",
                error.status,
            ) from error
        return {"client": installed, "server": server, "skew": skew(installed, server)}, answer

    show(output, fetch, lambda found, _: tables.versions(found))


def skew(client: str, server: str) -> str:
    """Return `none`, `supported` or `unsupported`; `unknown` if a version is no number."""
    ours, theirs = (re.match(r"(\d+)\.(\d+)", each) for each in (client, server))
    if ours is None or theirs is None:
        return "unknown"
    if client == server:
        return "none"
    same_major = ours[1] == theirs[1]
    return "supported" if same_major and abs(int(ours[2]) - int(theirs[2])) <= 1 else "unsupported"


def _open_browser(address: str) -> None:
    if not webbrowser.open(address):
        warn("no browser was found: open the address above. It is valid once.")


def open_page(client: ApiClient, port: int, *, browser: bool) -> None:
    """Serve the page on the loopback and open it in the browser, until Ctrl-C."""
    from app.kubectl.page_proxy import PageProxy

    client.get("/me")  # so that an error is a sentence here, not a page in the browser
    try:
        proxy = PageProxy(client, port)
    except OSError as error:
        raise InvalidInput(
            f"Port {port} cannot be used ({error.strerror}); choose another by --port."
        ) from error
    print(proxy.address, flush=True)
    if browser:
        # In a thread, because a text browser waits here until it ends.
        threading.Thread(target=_open_browser, args=(proxy.address,), daemon=True).start()
    warn("the page is served until Ctrl-C. The address is valid once, for one browser.")
    try:
        proxy.serve()
    except KeyboardInterrupt:
        warn("the page is no longer served.")
