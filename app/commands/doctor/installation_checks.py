"""Checks of an installed Fairgate: webhooks, canary, leader, mode. Pure functions of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from app.commands.doctor.findings import Check, Finding, count, names, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot, read_time
from app.core.errors import InvalidInput
from app.core.policy import ENFORCE_COMMAND, Mode
from app.core.well_known import GATE
from app.kube.enforcement_spec import ALWAYS_ENFORCED, BINDING, Ref, is_denying, read_documents
from app.ports.cluster_survey import Object

SERVICE = "kubernetes.io/service-name"
WEBHOOK = "fairgate-webhook"
RECENT = timedelta(minutes=10)
ALARMS = ("EnforcementFails", "EnforcementRestored")
NO_LEADER = "NoLeader"
STANDSTILLS = (NO_LEADER, "RedisUnreachable", "RedisNotWritable")

KINDS = {"mutating": "MutatingWebhookConfiguration", "validating": "ValidatingWebhookConfiguration"}


def check_installation(seen: ClusterSnapshot, now: datetime) -> Iterator[Finding]:
    """Check an installed Fairgate. `now` is compared with the times of Lease and events."""
    if not seen.installation.exists:
        if seen.is_known("mutatingwebhookconfigurations", "deployments"):
            judged = (
                "settings of the values file" if seen.assumptions.references else "chart's defaults"
            )
            yield ok(Check.WEBHOOKS, f"Fairgate is not installed; the {judged} are judged.")
        return
    yield from _webhooks(seen)
    yield from _mode(seen)
    yield from _rules(seen)
    yield from _canary(seen, now)
    yield from _leader(seen, now)
    yield from _conditions(seen)


def _webhooks(seen: ClusterSnapshot) -> Iterator[Finding]:
    found = seen.installation
    sound = True
    for attribute, kind in KINDS.items():
        item: Object | None = getattr(found, attribute)
        if item is None and seen.is_known(f"{attribute}webhookconfigurations"):
            yield problem(
                Check.WEBHOOKS,
                f"{kind} fairgate does not exist.",
                f"See the log of Deployment {WEBHOOK}, and apply the chart again.",
                [kind],
            )
            sound = False
        for hook in (item or {}).get("webhooks") or ():
            if not hook["clientConfig"].get("caBundle"):
                yield problem(
                    Check.WEBHOOKS,
                    f"{hook['name']} has no CA, so the API server cannot call it.",
                    f"See the log of Deployment {WEBHOOK}: it writes the CA when it starts.",
                    [hook["name"]],
                )
                sound = False
    if not seen.is_known("endpointslices", "mutatingwebhookconfigurations"):
        return
    if _is_external(found.mutating):
        if sound:
            yield ok(Check.WEBHOOKS, "the API server calls the webhook by its URL.")
        return
    ready = _ready_addresses(found.endpoints)
    if not ready:
        refuses = policy_mode(seen) is not Mode.OBSERVE
        effect = (
            "pods with devices cannot be created"
            if refuses
            else "pods that would be held or refused are not counted"
        )
        yield problem(
            Check.WEBHOOKS,
            f"Service {WEBHOOK} has no ready endpoint, so {effect}.",
            f"See why the pods of Deployment {WEBHOOK} are not ready.",
            [WEBHOOK],
        )
    elif ready == 1:
        yield warning(
            Check.WEBHOOKS,
            f"Service {WEBHOOK} has one ready endpoint: in mode Enforce pods with devices cannot "
            "be created while it restarts.",
            "Run two replicas or more (webhook.replicas).",
            [WEBHOOK],
        )
    elif sound:
        yield ok(Check.WEBHOOKS, f"Service {WEBHOOK} has {count(ready, 'ready endpoint')}.")


def _is_external(configuration: Object | None) -> bool:
    hooks = (configuration or {}).get("webhooks") or ()
    return any(hook["clientConfig"].get("url") for hook in hooks)


def _ready_addresses(slices: list[Object]) -> int:
    ready: set[str] = set()
    for each in slices:
        if (each["metadata"].get("labels") or {}).get(SERVICE) != WEBHOOK:
            continue
        for endpoint in each.get("endpoints") or ():
            # An absent condition counts as ready, as for kube-proxy.
            if (endpoint.get("conditions") or {}).get("ready") is not False:
                ready.update(endpoint.get("addresses") or ())
    return len(ready)


def policy_mode(seen: ClusterSnapshot) -> Mode | None:
    """Return the mode of the Policy or, if it has none, that of the chart; None if not known."""
    if not seen.is_known("policies.fairgate.io", "configmaps"):
        return None
    found = seen.installation
    own = ((found.policy or {}).get("spec") or {}).get("mode")
    of_chart = ((found.enforcement or {}).get("data") or {}).get("mode", "")
    written = own or of_chart.strip()
    return next((mode for mode in Mode if mode.value == written), Mode.ENFORCE)


def _mode(seen: ClusterSnapshot) -> Iterator[Finding]:
    match policy_mode(seen):
        case Mode.ENFORCE:
            yield ok(Check.MODE, "Fairgate enforces.")
        case Mode.OBSERVE:
            yield _observes(seen)


def _observes(seen: ClusterSnapshot) -> Finding:
    remedy = "Switch to Enforce when no problem is left"
    if ((seen.installation.policy or {}).get("spec") or {}).get("mode") is None:
        message = "Fairgate only observes: no pod is held or refused."
        return warning(Check.MODE, message, f"{remedy}.")
    message = (
        "Policy default has mode Observe, which overrides the chart: no pod is held or refused."
    )
    return warning(Check.MODE, message, f"{remedy}: {ENFORCE_COMMAND}")


def _rules(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check that policies and webhooks deny in mode Enforce, and only then."""
    mode, denies = policy_mode(seen), _denying(seen)
    if mode is None or denies is None:
        return
    wrong = sorted(str(ref) for ref, is_so in denies.items() if is_so is not (mode is Mode.ENFORCE))
    if wrong:
        is_one = len(wrong) == 1
        verb = "denies" if is_one else "deny"
        if mode is Mode.ENFORCE:
            verb = "does not deny" if is_one else "do not deny"
        yield problem(
            Check.RULES,
            f"the mode is {mode.value}, but {count(len(wrong), 'rule')} {verb}: {names(wrong)}.",
            f"See the log of Deployment {WEBHOOK}, which writes these objects.",
            wrong,
        )
    elif mode is Mode.ENFORCE:
        yield ok(Check.RULES, f"all {len(denies)} webhook configurations and policies deny.")


def _denying(seen: ClusterSnapshot) -> dict[Ref, bool] | None:
    """Return whether each object of the installation denies; None if not known.

    Objects that deny in every mode are left out.
    """
    read = ["configmaps", "validatingadmissionpolicybindings"]
    read += [f"{each}webhookconfigurations" for each in KINDS]
    found = seen.installation
    if found.enforcement is None or not seen.is_known(*read):
        return None
    try:
        wanted = read_documents(found.enforcement.get("data"))
    except InvalidInput:
        return None
    live = {Ref(BINDING, each["metadata"]["name"]): each for each in found.bindings}
    for attribute, kind in KINDS.items():
        if item := getattr(found, attribute):
            live[Ref(kind, "fairgate")] = item
    return {
        ref: ref in live and is_denying({"kind": ref.kind, **live[ref]})
        for ref in wanted
        if ref.kind in (BINDING, *KINDS.values()) and ref.name not in ALWAYS_ENFORCED
    }


def _canary(seen: ClusterSnapshot, now: datetime) -> Iterator[Finding]:
    found = seen.installation
    yield from _alarms(found.events, now)
    if policy_mode(seen) is not Mode.ENFORCE or not seen.is_known("pods", "events"):
        return
    if found.canary is None:
        yield warning(
            Check.CANARY,
            "the canary pod does not exist, so enforcement is not tested yet.",
            "Wait a minute after the start of the webhook, then see its log.",
        )
    elif not _is_held(found.canary):
        yield problem(
            Check.CANARY,
            "the canary pod does not carry Fairgate's gate: pods are not held.",
            f"See the log of Deployment {WEBHOOK}.",
        )
    else:
        yield ok(Check.CANARY, "the canary pod is held.")


def _alarms(events: list[Object], now: datetime) -> Iterator[Finding]:
    """Report recent events about enforcement, equal ones once, with number and last time."""
    times: dict[str, list[datetime]] = {}
    for each in events:
        at = _time_of(each)
        if each.get("reason") in ALARMS and at and now - at < RECENT:
            text = f"{each['reason']}: {each.get('message', '')}"
            times.setdefault(text, []).extend([at] * int(each.get("count") or 1))
    for text, at_times in times.items():
        last = f"{max(at_times):%H:%M:%S} UTC"
        when = f"at {last}" if len(at_times) == 1 else f"{len(at_times)} times, last at {last}"
        yield warning(
            Check.CANARY,
            f"in the last ten minutes, {when}: {text}",
            "See the section When something breaks in docs/operations.md.",
        )


def _is_held(pod: Object) -> bool:
    return any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or ())


def _leader(seen: ClusterSnapshot, now: datetime) -> Iterator[Finding]:
    if not seen.is_known("leases"):
        return
    spec: dict[str, Any] = (seen.installation.lease or {}).get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), read_time(spec.get("renewTime"))
    reason, reported, lasts = _standstill(seen, now)
    told = "" if reason == NO_LEADER else reported
    remedy = "See the log of Deployment fairgate-controller"
    if not holder or renewed is None:
        message = "no replica of the controller leads"
        message += f". {told}" if told else ", so no pod is released."
        remedy += "." if told else "; if its pods are ready, the usual cause is Redis."
        yield problem(Check.LEADER, message, remedy)
        return
    age = now - renewed
    is_stale = age > timedelta(seconds=int(spec.get("leaseDurationSeconds") or 0))
    if is_stale and not seen.installation.is_lease_renewed:
        yield problem(
            Check.LEADER,
            f"the Lease of {holder} was last renewed {int(age.total_seconds())} s ago, so no pod "
            f"is released. {told}".rstrip(),
            f"{remedy}. Check the clock of this machine.",
        )
    elif reported and lasts:
        yield problem(Check.LEADER, reported, f"{remedy}.")
    elif reported:
        yield warning(Check.LEADER, f"in the last ten minutes: {reported}", f"{remedy}.")
    else:
        yield ok(Check.LEADER, f"{holder} leads.")


def _standstill(seen: ClusterSnapshot, now: datetime) -> tuple[str, str, bool]:
    """Return why controllers release no pod: reason, message, and whether it surely lasts.

    The Policy, if there is one, has the current state. An event may be outdated.
    """
    found = seen.installation
    status = (found.policy or {}).get("status") or {}
    for each in status.get("conditions") or ():
        if each.get("type") == "Releasing":
            if each["status"] == "True":
                return "", "", False
            return str(each.get("reason", "")), str(each.get("message", "")), True
    recent = [
        (at, each["reason"], str(each.get("message", "")))
        for each in found.events
        if each.get("reason") in STANDSTILLS and (at := _time_of(each)) and now - at < RECENT
    ]
    _, reason, message = max(recent, default=(now, "", ""))
    return reason, message, False


def _time_of(event: Object) -> datetime | None:
    return read_time(event.get("lastTimestamp") or event.get("eventTime"))


REPORTED_CONDITIONS = (
    ("Tenant", "Ready", "False"),
    ("Tenant", "QuotasInForce", "False"),
    ("Tenant", "BudgetBlocksReclaim", "True"),
    ("Pool", "Ready", "False"),
    ("Pool", "NodesLeftOut", "True"),
)
"""Kinds and conditions with the status that is reported."""

INTENDED_REASONS = ("Paused",)
"""Reasons that somebody chose."""


def _conditions(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Report conditions of Tenants and Pools that hold work back, equal ones once."""
    found = seen.installation
    objects: dict[tuple[str, str], list[str]] = {}
    for kind, items in (("Tenant", found.tenants), ("Pool", found.pools)):
        for item in items:
            for each in (item.get("status") or {}).get("conditions") or ():
                what = (kind, str(each.get("type")), str(each.get("status")))
                if what in REPORTED_CONDITIONS and each.get("reason") not in INTENDED_REASONS:
                    message = (str(each.get("reason")), str(each.get("message", "")))
                    objects.setdefault(message, []).append(f"{kind} {item['metadata']['name']}")
    for (reason, text), named in objects.items():
        yield warning(
            Check.CONDITIONS,
            f"{reason} of {names(named)}: {text}.",
            "Run kubectl describe on these objects, and see docs/troubleshooting.md.",
            named,
        )
