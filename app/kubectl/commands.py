"""Implementation of each command: its API request, and the output of the answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from operator import itemgetter
from typing import Any

from app.core.errors import ClusterError, ClusterRefused, InvalidInput
from app.core.safe_text import escape_hidden, escape_hidden_in_json
from app.kubectl import (
    arguments,
    explain,
    related_pods,
    tables,
)
from app.kubectl.client import ApiAnswer, ApiClient, segment
from app.kubectl.options import ConnectionOptions, NamespaceScope
from app.kubectl.output import MAY_BE_MORE, MORE, show, write
from app.terminal.output import (
    Item,
    Listing,
    OutputFormat,
    OutputOptions,
    as_text,
    warn,
)
from app.terminal.text import Block

FORBIDDEN, GONE = 403, 404


@contextmanager
def advice_if_forbidden(sentence: str) -> Iterator[None]:
    """Append a sentence to an error 403; pass other errors on."""
    try:
        yield
    except ClusterRefused as error:
        if error.status != FORBIDDEN:
            raise
        raise ClusterRefused(f"{error} {sentence}".rstrip(), error.status) from error


def _pod(item: Item) -> str:
    return f"pod/{item['name']}"


ITEMS = itemgetter("items")
PODS = Listing(ITEMS, _pod)
POD = Listing(lambda found: [found], _pod)
OWN_PODS_HINT = "Your own pods: kubectl fairgate mine."
OWN_PODS = Listing(itemgetter("workloads"), _pod)
QUEUES = Listing(
    lambda found: [
        {"tenant": queue["tenant"], **each} for queue in found["items"] for each in queue["items"]
    ],
    _pod,
)
TENANTS = Listing(ITEMS, lambda item: f"tenant.fairgate.io/{item['name']}")
USERS = Listing(ITEMS, lambda item: f"user/{item['name']}")
POOLS = Listing(ITEMS, lambda item: f"pool.fairgate.io/{item['name']}")
TRIALS = Listing(ITEMS, no_name="an object of the file need not have a name")
USAGE = Listing(ITEMS, no_name="a row of usage is a sum")
FORECASTS = Listing(itemgetter("tenants"), lambda item: f"tenant.fairgate.io/{item['tenant']}")


def queue(
    client: ApiClient,
    output: OutputOptions,
    tenant: str | None,
    user: str | None,
    scope: NamespaceScope,
    limit: int | None,
) -> None:
    """Show the queue of one tenant, or the queues of all tenants."""
    query = [("user", user)] if user is not None else []

    def fetch() -> tuple[Any, ApiAnswer]:
        pod_filter = related_pods.pod_filter(client, scope)
        if tenant is None:
            return _queues(client, query, pod_filter, limit)
        with advice_if_forbidden(OWN_PODS_HINT):
            return _queue(client, tenant, query, pod_filter, limit)

    what = "Nothing" if user is None else f"Nothing of user {escape_hidden(user)}"
    what += "" if scope.selector is None else f" with labels {escape_hidden(scope.selector)}"
    space = scope.only_namespace(None if scope.selector is None else client.namespace)
    what += "" if space is None else f" in namespace {space}"

    def draw(found: Any, now: datetime) -> Block | str:
        queues = found["items"] if tenant is None else [found]
        return tables.queues(queues, output.wide, now, several=tenant is None, what=what)

    show(output, fetch, draw, QUEUES if tenant is None else PODS)


def _queue(
    client: ApiClient,
    tenant: str,
    query: Sequence[tuple[str, str]],
    pod_filter: related_pods.PodFilter | None,
    limit: int | None,
) -> tuple[Any, ApiAnswer]:
    """Return up to `limit` pods of a queue that pass the filter."""
    path = f"/tenants/{segment(tenant)}/queue"
    if pod_filter is None:
        return client.list_pages(path, query, limit)
    found, answer = client.list_pages(path, query)
    items = [*filter(pod_filter, found["items"])]
    if limit is not None and len(items) > limit:
        answer = answer.with_warning(MORE)
    return {**found, "items": items[:limit]}, answer


def _queues(
    client: ApiClient,
    query: Sequence[tuple[str, str]],
    pod_filter: related_pods.PodFilter | None,
    limit: int | None,
) -> tuple[Any, ApiAnswer]:
    """Return the queue of every tenant that has pending pods and is visible to the caller."""
    with advice_if_forbidden(f"{OWN_PODS_HINT} One tenant: queue TENANT."):
        known, answer = client.list_pages("/tenants")
    found: list[Any] = []
    hidden: list[str] = []
    left, has_more = limit, False
    for name in [each["name"] for each in known["items"] if each["pending"]]:
        if left is not None and left <= 0:
            answer = answer.with_warning(MAY_BE_MORE)
            break
        try:
            waiting, answer = _queue(client, name, query, pod_filter, left)
        except ClusterRefused as error:
            if error.status == FORBIDDEN:
                hidden.append(name)
            elif error.status != GONE:
                raise
            continue
        found.append(waiting)
        has_more = has_more or bool(waiting.get("continue"))
        left = None if left is None else left - len(waiting["items"])
    if hidden:
        named = ", ".join(hidden)
        answer = answer.with_warning(f"you may not see the queue of {named}; others are shown.")
    if has_more and MAY_BE_MORE not in answer.warnings:
        answer = answer.with_warning(MORE)
    return {"items": found}, answer


def why(client: ApiClient, output: OutputOptions, scope: NamespaceScope, pod: str | None) -> None:
    """Show why a pod waits, or the pods of an object or of labels."""
    if (pod is None) == (scope.selector is None):
        raise InvalidInput("Name one pod or object, or give labels by -l; not both.")
    if pod is not None and scope.all_namespaces:
        raise InvalidInput("A name is looked up in one namespace: write -n, or -A with -l.")
    space = scope.only_namespace(client.namespace)
    source = (
        related_pods.source(pod)
        if pod is not None
        else related_pods.PodSource("", scope.selector or "")
    )
    if source is not None:
        show(
            output,
            lambda: related_pods.summary(client, space, source),
            lambda found, now: explain.explain_several(found, output.wide, now),
            PODS,
        )
        return
    path = f"/workloads/{segment(space or '')}/{segment(arguments.pod(pod or ''))}"

    def fetch() -> tuple[Any, ApiAnswer]:
        answer = client.get(path)
        return answer.as_object(), answer

    show(output, fetch, lambda found, now: explain.why(found, output.wide, now), POD)


def attempt(
    connection: ConnectionOptions,
    output: OutputOptions,
    file: str,
    namespace: str | None,
    contexts: Sequence[str],
) -> int:
    """Show what clusters would do with a manifest. Return the exit code: 1 if it is refused."""
    from app.kubectl import dry_run, manifests, trial_output  # no other command needs them

    objects = manifests.documents(file)
    if contexts:
        found = dry_run.compare(
            lambda name: connection.with_context(name).create_client(), contexts, namespace, objects
        )
        by_context = {each["context"] for each in found["items"] if not each["accepted"]}
        refused = len(by_context) == len(contexts)
    else:
        found = dry_run.evaluate(connection.create_client(), namespace, objects)
        refused = not dry_run.is_accepted(found["items"])
    answer = ApiAnswer(b"", datetime.now(timezone.utc), 0.0)
    show(
        output,
        lambda: (found, answer),
        lambda found, now: (
            trial_output.comparison(found, output.wide, now)
            if contexts
            else trial_output.trials(found, now)
        ),
        TRIALS,
    )
    return int(refused)


def mine(client: ApiClient, output: OutputOptions, scope: NamespaceScope) -> None:
    """Show the caller's own workloads, use and fair share."""

    def fetch() -> tuple[Any, ApiAnswer]:
        pod_filter = related_pods.pod_filter(client, scope)
        answer = client.get("/me")
        found = answer.as_object()
        if pod_filter is not None:
            found = {**found, "workloads": [*filter(pod_filter, found["workloads"])]}
        return found, answer

    show(output, fetch, lambda found, now: tables.mine(found, output.wide, now), OWN_PODS)


def tenants(client: ApiClient, output: OutputOptions, limit: int | None) -> None:
    """Show tenants."""
    show(
        output,
        lambda: client.list_pages("/tenants", (), limit),
        lambda found, _: tables.tenants(found["items"], output.wide),
        TENANTS,
    )


def pools(client: ApiClient, output: OutputOptions, limit: int | None) -> None:
    """Show pools."""
    show(
        output,
        lambda: client.list_pages("/pools", (), limit),
        lambda found, _: tables.pools(found["items"], output.wide),
        POOLS,
    )


def usage(
    client: ApiClient,
    output: OutputOptions,
    by: str,
    span: tuple[str | None, str | None],
    tenant: str | None,
    limit: int | None,
    *,
    total: bool,
) -> None:
    """Show the usage between two times, or the totals. CSV is printed as received."""
    advice = "" if tenant is not None else "One tenant: usage --tenant TENANT."
    names, now = arguments.by(by), datetime.now(timezone.utc)
    query = [("by", ",".join(names))]
    query += [
        (key, arguments.time(text, now))
        for key, text in zip(("from", "to"), span, strict=True)
        if text is not None
    ]
    query += [("tenant", tenant)] if tenant is not None else []
    query += [("total", "true")] if total else []
    if output.form is OutputFormat.CSV:
        if limit is not None:
            raise InvalidInput("CSV is always whole: leave out --limit.")
        with advice_if_forbidden(advice):
            text = client.get("/usage", [*query, ("format", "csv")]).body.decode()
        sys.stdout.write(text.partition("\n")[2] if output.no_headers else text)
        return
    with advice_if_forbidden(advice):
        show(
            output,
            lambda: client.list_pages("/usage", query, limit),
            lambda found, _: tables.usage(found, names, output.wide),
            USAGE,
        )


def simulate(
    client: ApiClient,
    output: OutputOptions,
    weights: Sequence[str],
    users: Sequence[str],
    hours: float,
) -> None:
    """Show the effect of other weights."""
    if not weights and not users:
        raise InvalidInput(
            "Say what to change: --weight team-a=3, or --user team-a/alice=2, or several of them."
        )
    body = {
        "weights": arguments.tenant_weights(weights),
        "users": arguments.user_weights(users),
        "hours": hours,
    }
    answer = client.post_query("/simulations", body)
    show(
        output,
        lambda: (answer.as_object(), answer),
        lambda found, _: explain.simulation(found, output.wide),
        FORECASTS,
    )
    if users:
        warn(
            "to see the order inside a tenant, run kubectl fairgate weights set TENANT --user USER "
            "WEIGHT --dry-run."
        )


def set_weight(
    client: ApiClient,
    output: OutputOptions,
    tenant: str,
    user: str | None,
    weight: str,
    dry_run: bool,
) -> None:
    """Set the weight of a tenant or of one of its users."""
    whom = f"/users/{segment(user)}" if user is not None else ""
    path = f"/tenants/{segment(tenant)}{whom}/weight"
    query = [("dryRun", "true")] if dry_run else []
    body = {"weight": arguments.weight(weight, tenant, user)}
    found = client.send("PUT", path, body, query).as_object()
    if output.is_data:
        print(as_text(output, found))
        return
    who = f"User {user} of tenant {tenant}" if user is not None else f"Tenant {tenant}"
    if dry_run:
        write(explain.change(escape_hidden(who), weight, escape_hidden_in_json(found)), output)
    else:
        write(f"{escape_hidden(who)} weighs {weight} from now on.")
    if user is not None:
        _warn_if_unknown(client, tenant, user)


def _warn_if_unknown(client: ApiClient, tenant: str, user: str) -> None:
    """Warn of a user without pods in the tenant: the name may be misspelt."""
    try:
        found, _ = client.list_pages(f"/tenants/{segment(tenant)}/users")
    except ClusterError:
        return  # the weight is set; not every caller who may do that may see who has pods
    with_pods = {each["name"] for each in found["items"] if each["used"] or each["pending"]}
    if user not in with_pods:
        warn(
            f"no pod of user {user} waits or runs in tenant {tenant}, so check the spelling: names "
            "are those of kubectl auth whoami."
        )
