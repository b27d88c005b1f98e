"""Every change to a chain of audit entries is found; a hole passes only if an entry names it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.audit.codec import SignedHead, entry_line, parse_line
from app.core.audit.verifier import (
    BrokenChain,
    ChainVerdict,
    ChainVerifier,
    Gap,
    gap_record,
    pruning_record,
)
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.errors import InvalidInput
from app.core.model import Millis

FACTS = st.dictionaries(
    st.text(max_size=4),
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    max_size=3,
)
RECORDS = st.builds(
    AuditRecord,
    st.integers(0, 10**13).map(Millis),
    st.sampled_from([EntryType.HELD, EntryType.RELEASED, EntryType.CHANGED]),
    FACTS,
)


@st.composite
def chains(draw: st.DrawFn, least: int = 1) -> list[Entry]:
    """A complete chain over several terms."""
    head, entries, epoch = Head(), [], 1
    for record in draw(st.lists(RECORDS, min_size=least, max_size=12)):
        epoch += draw(st.integers(0, 1))
        entries.append(seal(head, epoch, record))
        head = entries[-1].head
    return entries


def extended(entries: list[Entry], *records: AuditRecord, after: Head | None = None) -> list[Entry]:
    grown = list(entries)
    head = after or entries[-1].head
    for record in records:
        grown.append(seal(head, entries[-1].epoch, record))
        head = grown[-1].head
    return grown


def signed(entry: Entry) -> SignedHead:
    return SignedHead("c", entry.head, entry.epoch, entry.record.at)


def verify(entries: list[Entry], *heads: SignedHead, copies: bool = False) -> ChainVerdict:
    proof = ChainVerifier(heads, copies=copies)
    for entry in entries:
        proof.add_entry(entry)
    return proof.verdict()


@given(chains())
def test_an_untouched_chain_holds_as_text_too(entries: list[Entry]) -> None:
    again = [parse_line(entry_line(each)) for each in entries]
    assert again == entries
    verdict = verify(entries, signed(entries[-1]))
    assert (verdict.entries, verdict.unsigned_entries) == (len(entries), 0)


@given(chains(), st.data())
def test_any_changed_field_is_found(entries: list[Entry], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(entries) - 1))
    victim = entries[i]
    other = data.draw(
        st.sampled_from(
            [
                replace(victim, number=victim.number + 1),
                replace(victim, epoch=victim.epoch + 1),
                replace(victim, previous_hash="f" * 64),
                replace(victim, hash="f" * 64),
                replace(victim, record=replace(victim.record, at=Millis(victim.record.at + 1))),
                replace(victim, record=replace(victim.record, entry_type=EntryType.BYPASSED)),
                replace(victim, record=replace(victim.record, facts={"another": 1})),
            ]
        )
    )
    with pytest.raises(BrokenChain) as caught:
        verify([*entries[:i], other, *entries[i + 1 :]], signed(entries[-1]))
    assert caught.value.number == other.number


@given(chains(), st.data())
def test_a_change_with_a_hash_to_fit_is_found(entries: list[Entry], data: st.DataObject) -> None:
    """An attacker that also rewrites all later entries still lacks the key."""
    i = data.draw(st.integers(0, len(entries) - 1))
    head = entries[i - 1].head if i else Head()
    records = [replace(entries[i].record, facts={"another": 1})]
    records += [each.record for each in entries[i + 1 :]]
    forged = entries[:i]
    for record, old in zip(records, entries[i:], strict=True):
        forged.append(seal(head, old.epoch, record))
        head = forged[-1].head
    with pytest.raises(BrokenChain):
        verify(forged, signed(entries[-1]))


@given(chains(2), st.data())
def test_any_deletion_is_found(entries: list[Entry], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(entries) - 1))
    last = data.draw(st.integers(first + 1, len(entries)))
    with pytest.raises(BrokenChain):
        verify(entries[:first] + entries[last:], signed(entries[-1]))


@given(chains(2), st.data(), st.booleans())
def test_any_swap_is_found(entries: list[Entry], data: st.DataObject, copies: bool) -> None:
    i, j = sorted(data.draw(st.sets(st.integers(0, len(entries) - 1), min_size=2, max_size=2)))
    swapped = list(entries)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    with pytest.raises(BrokenChain):
        verify(swapped, signed(entries[-1]), copies=copies)


@given(chains(), RECORDS, st.data())
def test_any_insertion_is_found(
    entries: list[Entry], record: AuditRecord, data: st.DataObject
) -> None:
    i = data.draw(st.integers(1, len(entries)))
    forged = seal(entries[i - 1].head, entries[i - 1].epoch, record)
    inserted = [*entries[:i], forged, *entries[i:]]
    if i == len(entries):
        assert verify(inserted, signed(entries[-1]), copies=True).unsigned_entries == 1
    if i == len(entries) or forged != entries[i]:
        with pytest.raises(BrokenChain):
            verify(inserted, signed(entries[-1]))


@given(chains(), st.data())
def test_a_changed_line_never_passes_for_another(entries: list[Entry], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(entries) - 1))
    text = entry_line(entries[i])
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.sampled_from('0a"}{:,x')) + text[at + 1 :]
    try:
        found = parse_line(changed)
    except InvalidInput:
        return
    if found == entries[i]:
        return  # for example, a fact with another escape sequence
    assert isinstance(found, Entry)
    with pytest.raises(BrokenChain):
        verify([*entries[:i], found, *entries[i + 1 :]], signed(entries[-1]))


@given(chains(3), RECORDS, st.data())
def test_a_hole_passes_only_where_a_signed_gap_names_it(
    entries: list[Entry], record: AuditRecord, data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, len(entries) - 2))
    named = Gap(entries[kept - 1].head, entries[-1].head)
    whole = extended(entries, gap_record(Millis(1), named, exact=True, why="lost"), record)
    stream = whole[:kept] + whole[len(entries) :]
    newest = signed(whole[-1])
    assert verify(stream, signed(entries[-1]), newest).gaps == 1
    for other in (whole[: kept - 1] + whole[len(entries) :], whole[: kept + 1] + whole[-2:]):
        with pytest.raises(BrokenChain):
            verify(other, newest)


@given(chains(3), st.data())
def test_a_gap_that_is_not_signed_is_not_accepted(
    entries: list[Entry], data: st.DataObject
) -> None:
    kept = data.draw(st.integers(1, len(entries) - 2))
    named = Gap(entries[kept - 1].head, entries[-1].head)
    whole = extended(entries, gap_record(Millis(1), named, exact=True, why="forged"))
    stream = whole[:kept] + whole[-1:]
    for heads in ([], [signed(entries[-1])], [signed(entries[kept - 1])]):
        with pytest.raises(BrokenChain):
            verify(stream, *heads)


@given(chains(3), RECORDS, st.data())
def test_a_front_may_be_missing_only_as_pruned(
    entries: list[Entry], record: AuditRecord, data: st.DataObject
) -> None:
    first = data.draw(st.integers(1, len(entries) - 1))
    whole = extended(
        entries, pruning_record(Millis(1), entries[first - 1].head, first, "old"), record
    )
    newest = signed(whole[-1])
    assert verify(whole[first:], newest).missing_head == entries[first - 1].head
    with pytest.raises(BrokenChain):
        verify(whole[first + 1 :], newest)
    with pytest.raises(BrokenChain):
        verify(whole[first:], signed(entries[-1]))
    assert verify(whole, newest).missing_head == Head()


@given(chains(2), st.data())
def test_repeated_entries_are_accepted_only_in_copies(
    entries: list[Entry], data: st.DataObject
) -> None:
    i = data.draw(st.integers(1, len(entries)))
    again = [*entries[:i], *entries[:i], *entries[i:]]
    assert verify(again, signed(entries[-1]), copies=True).entries == len(entries)
    with pytest.raises(BrokenChain):
        verify(again, signed(entries[-1]))


@given(chains(2), chains(), RECORDS)
def test_files_may_branch_off_only_by_a_signed_gap_of_a_later_term(
    entries: list[Entry], other: list[Entry], record: AuditRecord
) -> None:
    known = entries[0].head
    epoch = entries[-1].epoch + 1
    branch = seal(known, epoch, gap_record(Millis(1), Gap(Head(), known), exact=False, why="lost"))
    later = seal(branch.head, epoch, record)
    newest = signed(later)
    assert verify([*entries, branch, later], newest, copies=True).gaps == 1
    plain = seal(known, epoch, record)
    if plain.head != entries[1].head:
        with pytest.raises(BrokenChain):
            verify([*entries, plain], signed(plain), copies=True)
    early = seal(known, entries[-1].epoch, branch.record)
    with pytest.raises(BrokenChain):
        verify([*entries, early], signed(early), copies=True)
