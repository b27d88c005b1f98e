"""Checks of API server, schedulers, PriorityClasses and quotas. Pure functions of a snapshot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.commands.doctor.findings import Check, Finding, count, names, ok, problem, warning
from app.commands.doctor.snapshot import ClusterSnapshot
from app.commands.doctor.workloads import DEFAULT_SCHEDULER
from app.core.admission.priority_class_twins import twin_name, wanted_twins
from app.ports.cluster_survey import Object

OLDEST = (1, 30)
TESTED = ((1, 34), (1, 35), (1, 36), (1, 37))
"""Versions of Kubernetes with results in the table of docs/compatibility.md."""

BINDS = (("", "pods/binding", "create"), ("", "bindings", "create"))
MAY_BIND = ("fairgate.io", "podgates", "bind")
CRITICAL = "system-cluster-critical"
PRIORITY_SCOPE = "PriorityClass"


def check_kubernetes(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check the version of the API server and the features that Fairgate needs."""
    found = re.match(r"v?(\d+)\.(\d+)", seen.version)
    if found is None:
        yield problem(
            Check.KUBERNETES,
            f"the API server returns no version ({seen.version!r}).",
            "Check whether the kubeconfig names the right server.",
        )
        return
    version = (int(found[1]), int(found[2]))
    tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    if version < OLDEST:
        yield problem(
            Check.KUBERNETES,
            f"version {seen.version} is too old.",
            "Upgrade to 1.30 or newer: older API servers evaluate no admission policies.",
        )
    elif version in TESTED:
        yield ok(Check.KUBERNETES, f"version {seen.version}, which is tested.")
    else:
        yield warning(
            Check.KUBERNETES,
            f"version {seen.version} is not tested (tested: {tested}).",
            "Try Fairgate in mode Observe first.",
        )
    if "validatingadmissionpolicies" in seen.admission:
        yield ok(Check.POLICIES, "the API server evaluates admission policies.")
    elif seen.is_known("admissionregistration.k8s.io"):
        yield problem(
            Check.POLICIES,
            "the API server does not serve ValidatingAdmissionPolicy.",
            "Enable admissionregistration.k8s.io/v1: without policies the webhook alone enforces.",
        )


def check_schedulers(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check that Fairgate allows all schedulers that place pods, and all accounts that bind."""
    allowed = seen.assumptions.rules.schedulers
    others = other_schedulers(seen)
    for scheduler in others:
        pods = [each.address for each in seen.workloads if scheduler in each.schedulers]
        yield problem(
            Check.SCHEDULERS,
            f"scheduler {scheduler} places {count(len(pods), 'workload')} ({names(pods)}), and "
            "Fairgate would refuse its bindings, and its pods with devices.",
            "Add it to schedulers.names, and its account to schedulers.users.",
            pods,
        )
    for account in other_binders(seen):
        yield problem(
            Check.SCHEDULERS,
            f"{account} may bind pods by RBAC, and Fairgate would refuse its bindings.",
            "Add it to schedulers.users if it is a scheduler, else remove its right.",
            [account],
        )
    if not others and seen.is_known("pods", "clusterroles", "clusterrolebindings"):
        yield ok(Check.SCHEDULERS, f"pods use only {', '.join(allowed)}.")


def other_schedulers(seen: ClusterSnapshot) -> list[str]:
    """Return the names of schedulers that place pods and are not allowed."""
    exempt, allowed = set(seen.assumptions.exempt), set(seen.assumptions.rules.schedulers)
    used = (each.schedulers for each in seen.workloads if each.namespace not in exempt)
    return sorted(set().union(*used) - allowed - {DEFAULT_SCHEDULER})


def other_binders(seen: ClusterSnapshot) -> list[str]:
    """Return the accounts that may bind pods by RBAC, but not with Fairgate.

    The controllers of kube-system hold the right without using it.
    """
    permitted = [*seen.accounts.holders(MAY_BIND), *seen.assumptions.binders]
    known = {*permitted, *seen.assumptions.rules.controllers}
    return [each for each in seen.accounts.holders(*BINDS) if each not in known]


def check_priorities(seen: ClusterSnapshot) -> Iterator[Finding]:
    """Check the PriorityClasses, of which Fairgate makes copies that never preempt."""
    if not seen.is_known("priorityclasses") or not seen.assumptions.rules.refuse_preemption:
        return
    wanted = wanted_twins(seen.classes)
    for name, twin in sorted(wanted.items()):
        taken = seen.classes.get(name)
        if taken and not taken.is_ours and not (taken.never_preempts and taken.value == twin.value):
            yield problem(
                Check.PRIORITIES,
                f"PriorityClass {name} has the name of a twin but differs from it: GPU pods of its "
                "original class would be refused.",
                f"Delete or rename PriorityClass {name}.",
                [name],
            )
    new = sorted(name for name in wanted if name not in seen.classes)
    made = f"Fairgate would create {count(len(new), 'twin')}: {names(new)}." if new else ""
    yield ok(
        Check.PRIORITIES,
        f"the cluster has {len(seen.classes)} PriorityClasses. {made or 'All twins exist.'}",
    )


def check_quotas(seen: ClusterSnapshot, namespace: str) -> Iterator[Finding]:
    """Check the quotas that name PriorityClasses. A GPU pod gets the twin of its class."""
    if not seen.is_known("resourcequotas"):
        return
    exempt = set(seen.assumptions.exempt)
    wanted = {twin_name(name) for name in seen.classes} & set(wanted_twins(seen.classes))
    named = 0
    for quota in seen.quotas:
        space, name = quota["metadata"]["namespace"], quota["metadata"]["name"]
        classes = quota_classes(quota)
        if not classes or space in exempt:
            continue
        named += 1
        missing = sorted(
            twin_name(each)
            for each in classes
            if twin_name(each) in wanted and twin_name(each) not in classes
        )
        if missing and seen.assumptions.rules.refuse_preemption:
            yield warning(
                Check.QUOTAS,
                f"ResourceQuota {space}/{name} names {', '.join(sorted(classes))}, and GPU pods "
                "get the twin of their class, so it does not count them.",
                f"Name {', '.join(missing)} in its scopeSelector too.",
                [f"{space}/{name}"],
            )
    critical = [each for each in seen.quotas if CRITICAL in quota_classes(each)]
    spaces = [each["metadata"]["namespace"] for each in critical]
    if critical and namespace not in spaces:
        yield warning(
            Check.QUOTAS,
            f"{names(sorted(set(spaces)))} has a ResourceQuota for {CRITICAL}, so the cluster may "
            f"allow that class only with a quota, and Fairgate's pods in {namespace} use it.",
            f"Create the same ResourceQuota in {namespace}, or set priorityClassName.",
            [f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in critical],
        )
    elif not named:
        yield ok(Check.QUOTAS, "no ResourceQuota of a team names a PriorityClass.")


def quota_classes(quota: Object) -> set[str]:
    """Return the PriorityClasses that a ResourceQuota names."""
    spec: dict[str, Any] = quota.get("spec") or {}
    selector: dict[str, Any] = spec.get("scopeSelector") or {}
    return {
        value
        for term in selector.get("matchExpressions") or ()
        if term.get("scopeName") == PRIORITY_SCOPE and term.get("operator") == "In"
        for value in term.get("values") or ()
    }
