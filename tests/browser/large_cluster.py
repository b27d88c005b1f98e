"""A cluster with 100 tenants, 2 000 users, 10 000 pending pods and 1 000 nodes."""

from __future__ import annotations

from app.core import events as ev
from tests.fakes.fake_api_cluster import held, pool, runs, tenant

TENANTS, USERS, PODS, POOLS, NODES = 100, 20, 5, 4, 250
"""Users of each tenant, pending pods of each user, and nodes of each pool."""


def large_cluster() -> list[ev.ClusterEvent]:
    """Return the events of the cluster. Each tenant has one running pod."""
    news: list[ev.ClusterEvent] = []
    for number in range(POOLS):
        news += pool(f"pool{number}", NODES)
    for number in range(TENANTS):
        name = f"team-{number:03}"
        news.append(tenant(name))
        people = [f"user-{user:02}@{name}.example.com" for user in range(USERS)]
        node = f"pool{number % POOLS}-{number % NODES:02}"
        news.append(runs(f"run-{number}", name, people[0], node, 8))
        news += [
            held(f"job-{number}-{user}-{pod}", name, person, 8)
            for user, person in enumerate(people)
            for pod in range(PODS)
        ]
    return news
