"""Result of a simulation as JSON. Programs rely on the keys: only additions are allowed.

Amounts are in the units of requests: cores, bytes, devices. Times are in seconds.
"""

from __future__ import annotations

from typing import Any

from app.core.model import Amounts, Millis
from app.core.quantities import CPU
from app.sim.cluster.workload import TimelineEntry
from app.sim.metrics.window import Measures
from app.sim.scenario.result import FinalUsage, ScenarioResult, TenantOutcome, WaitingAtEnd

Json = dict[str, Any]


def to_json(outcome: ScenarioResult) -> Json:
    """Return the whole result as JSON values."""
    return {
        "until": seconds(outcome.scenario.until),
        "releases": [_release(moment, outcome) for moment in outcome.releases],
        "evictions": [_eviction(moment) for moment in outcome.evictions],
        "tenants": {name: _tenant(each) for name, each in outcome.tenants.items()},
        "metrics": {
            **metrics(outcome.measures),
            "drift_over_bound_max": outcome.drift,
            "drift_pairs": outcome.drift_pairs,
            "decisions": outcome.decisions,
            "events": outcome.events,
        },
        "waiting": [_waiting(each) for each in outcome.waiting],
    }


def metrics(measures: Measures) -> Json:
    """Return the figures of a window that depend only on its timeline."""
    waits, gangs = measures.wait_seconds, measures.large_gang_wait_seconds
    return {
        "jain": measures.jain,
        "fairness_error": measures.fairness_error,
        "utilisation": dict(measures.utilisation),
        "starved_users": dict(measures.starved_users),
        "wait_seconds": {"mean": waits.mean, "p50": waits.p50, "p95": waits.p95, "max": waits.max},
        "large_gang_wait_seconds": {"mean": gangs.mean, "max": gangs.max},
        "evicted_device_seconds": measures.evicted_device_seconds,
    }


def named_nodes(outcome: ScenarioResult, moment: TimelineEntry) -> list[str]:
    """Return the node of each pod of a release; empty if the scenario has no named nodes."""
    stand_ins = outcome.scenario.cluster.capacity_nodes
    return [node for node in moment.nodes if node not in stand_ins]


def seconds(millis: Millis | int) -> float:
    """Return a time as seconds."""
    return millis / 1000


def in_request_units(amounts: Amounts) -> dict[str, int | float]:
    """Return amounts in the units of requests, as integers if they are whole."""
    return {str(r): _cores(value) if r == CPU else value for r, value in amounts.items()}


def spent_seconds(charged: Amounts) -> dict[str, float]:
    """Return charges as resource-seconds."""
    return {str(r): v / (1_000_000 if r == CPU else 1000) for r, v in charged.items()}


def _cores(millicores: int) -> int | float:
    return millicores / 1000 if millicores % 1000 else millicores // 1000


def _release(moment: TimelineEntry, outcome: ScenarioResult) -> Json:
    return {
        "at": seconds(moment.at),
        "workload": moment.work.name,
        "tenant": moment.work.tenant,
        "user": moment.work.user,
        "pool": moment.pool,
        "nodes": named_nodes(outcome, moment),
    }


def _eviction(moment: TimelineEntry) -> Json:
    return {
        "at": seconds(moment.at),
        "workload": moment.work.name,
        "tenant": moment.work.tenant,
        "user": moment.work.user,
        "for": moment.beneficiary.name if moment.beneficiary else None,
        "reason": moment.cause.value if moment.cause else None,
    }


def _waiting(waiting: WaitingAtEnd) -> Json:
    return {
        "workload": waiting.work.name,
        "tenant": waiting.work.tenant,
        "user": waiting.work.user,
        "since": seconds(waiting.since),
        "rule": waiting.why.rule.value,
        "text": waiting.why.text,
        "numbers": dict(waiting.why.numbers),
    }


def _tenant(outcome: TenantOutcome) -> Json:
    return {
        **_account(outcome.account),
        "share": float(outcome.share),
        "users": {name: _account(account) for name, account in outcome.users.items()},
    }


def _account(account: FinalUsage) -> Json:
    return {
        "used": in_request_units(account.used),
        "charged": spent_seconds(account.charged),
        "pending": account.pending,
    }
