"""The audit chain gives the weights and quotas at any time that it covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.audit.codec import entry_line, parse_line
from app.core.audit.config_changes import ConfigChanges, marker_key, spec_of
from app.core.audit.quota_history import QuotaHistory, QuotaTerms
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.errors import InvalidInput
from app.core.model import Millis, PoolName, Quota, Resource, Tenant, TenantName, UserName
from tests.support.depth import cases

GPU, CPU = Resource("nvidia.com/gpu"), Resource("cpu")
LONG = PoolName("p" * 130)
"""A name that is too long for an entry to show in full among the changed fields."""

names = st.sampled_from([TenantName("a"), TenantName("b.c"), TenantName("limit")])
pools = st.sampled_from([PoolName("h100"), PoolName("a.limit.b"), LONG])
decimals = st.builds(lambda n: Fraction(n, 10**6), st.integers(0, 10**18))
amounts = st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(0, 10**9), max_size=2)
quotas = st.dictionaries(
    pools, st.builds(Quota, amounts, amounts).filter(lambda q: q.guarantee or q.limit), max_size=3
)
users = st.dictionaries(
    st.builds(lambda n: UserName(f"{n}" * 90), st.integers(0, 99)), decimals, max_size=9
)
tenants = st.builds(
    Tenant, names, st.just(Millis(0)), decimals, st.one_of(st.none(), names), quotas=quotas,
    user_weights=users,
)  # fmt: skip
steps = st.lists(
    st.one_of(tenants, names, st.just("new leader")), max_size=25
)  # a Tenant is stored, a name is deleted


class Chain:
    """The audit entries of a leader's configuration changes, and the true state at each time."""

    def __init__(self) -> None:
        self.changes, self.head = ConfigChanges(), Head()
        self.now, self.notes = 1000, dict[str, str]()
        self.entries: list[Entry] = []
        self.tenants: dict[TenantName, Tenant] = {}
        self.then: list[tuple[int, dict[TenantName, Tenant]]] = []
        self.say(*self.changes.start_term(Millis(self.now), {}))

    def say(self, *records: AuditRecord) -> None:
        for record in records:
            entry = seal(self.head, 1, record)
            self.head = entry.head
            found = parse_line(entry_line(entry))  # parsed, as read from Redis
            assert isinstance(found, Entry)
            self.entries.append(found)
            self.notes |= dict(record.audit_markers)

    def step(self, step: Tenant | str) -> None:
        self.then.append((self.now, dict(self.tenants)))
        self.now += 10
        at = Millis(self.now)
        if isinstance(step, Tenant):
            self.tenants[step.name] = step
            self.say(
                *self.changes.observe_resource(
                    at, marker_key(Tenant, step.name), spec_of(step), "root"
                )
            )
        elif step == "new leader":
            self.changes.end_term()
            self.say(*self.changes.start_term(at, {k: v for k, v in self.notes.items() if v}))
        elif step in self.tenants:
            del self.tenants[TenantName(step)]
            self.say(*self.changes.record_deleted(at, marker_key(Tenant, step)))

    def terms_at(self, at: int) -> list[QuotaTerms]:
        past = QuotaHistory(Millis(at))
        for entry in self.entries:
            past.add_entry(entry)
        return past.quota_terms(self.tenants)


def terms(tenants: Mapping[TenantName, Tenant]) -> list[QuotaTerms]:
    return [
        QuotaTerms(t.name, t.parent, t.weight, dict(sorted(t.quotas.items())))
        for _, t in sorted(tenants.items())
    ]


@settings(max_examples=cases(80, 200))
@given(steps=steps)
def test_quota_terms_of_a_past_time_are_read_from_the_audit_chain(
    steps: list[Tenant | str],
) -> None:
    chain = Chain()
    for step in steps:
        chain.step(step)
    for at, then in chain.then:
        assert chain.terms_at(at) == terms(then)
    assert chain.terms_at(chain.now) == terms(chain.tenants)


TENANT = Tenant(TenantName("a"), Millis(0), Fraction(2), quotas={PoolName("h100"): Quota({GPU: 8})})


def test_an_entry_of_an_older_version_is_enough_if_it_shows_all() -> None:
    chain = Chain()
    chain.step(TENANT)
    chain.step(replace(TENANT, weight=Fraction(3)))
    assert all("rest" not in entry.record.facts for entry in chain.entries)
    (found,) = chain.terms_at(1010)
    assert found.weight == 2


@pytest.mark.parametrize(
    ("entry_type", "facts"),
    [
        (EntryType.GAP, {}),
        (EntryType.CHANGED, {"kind": "Tenant", "name": "a", "fields": {}, "more": 3}),
        (
            EntryType.CHANGED,
            {"kind": "Tenant", "name": "a", "fields": {"quotas.ppp…": {"before": "1"}}},
        ),
    ],
)
def test_incomplete_audit_chain_gives_no_past_quota_terms(
    entry_type: EntryType, facts: dict[str, str]
) -> None:
    chain = Chain()
    chain.step(TENANT)
    chain.now += 10
    chain.say(AuditRecord(Millis(chain.now), entry_type, facts))
    with pytest.raises(InvalidInput, match="ask for a later time"):
        chain.terms_at(chain.now - 5)
    assert chain.terms_at(chain.now) == terms(chain.tenants)


def test_change_too_large_for_the_chain_is_reported_as_incomplete() -> None:
    chain = Chain()
    huge = {PoolName(f"{i:0120}"): Quota({GPU: i}, {GPU: i}) for i in range(60)}
    chain.step(replace(TENANT, quotas=huge))
    chain.step(replace(TENANT, quotas={}))
    with pytest.raises(InvalidInput, match="the change of tenant a is not complete in it"):
        chain.terms_at(1010)
