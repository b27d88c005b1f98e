"""The object that an event is about, for logs."""

from __future__ import annotations

from app.core import events as ev


def subject(event: ev.Event) -> tuple[str, str]:
    """Return namespace and name of the object of an event; empty strings if it has no object."""
    match event:
        case ev.PodObserved(_, pod):
            return pod.namespace, pod.name
        case ev.NodeObserved(_, node):
            return "", node.name
        case ev.TenantObserved(_, tenant):
            return "", tenant.name
        case ev.PoolObserved(_, pool):
            return "", pool.name
        case ev.ClaimObserved(_, claim):
            return claim.namespace, claim.name
        case ev.ClaimGone(_, namespace, name) | ev.GroupGone(_, namespace, name):
            return namespace, name
        case ev.GroupObserved(_, group):
            return group.namespace, group.name
        case ev.NodeGone(_, name) | ev.TenantGone(_, name) | ev.PoolGone(_, name):
            return "", name
        case _:
            return "", getattr(event, "uid", "")
