"""`verify_audit.py` of the docs and `fairgate audit verify` give the verdicts of docs/audit.md."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.commands.audit import command
from app.core.audit.codec import SignedHead, entry_line, head_line, parse_line
from app.core.audit.verifier import Gap, gap_record
from app.core.audit_entry import AuditRecord, Entry, EntryType, Head, seal
from app.core.kubeconfig import KubeconfigOptions
from app.core.model import Millis
from app.terminal.output import OutputOptions
from app.tls.audit_signing_key import Signer
from tests.fakes.fake_audit_stream import FakeKey
from tests.support.audit_world import World, held

ROOT = Path(__file__).parents[4]
FILE = ROOT / "docs" / "examples" / "verify_audit.py"
PAGE = ROOT / "docs" / "audit.md"
Lines = list[str]


@pytest.fixture(scope="module")
def verifier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verify_audit", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Judges:
    """Both programs. `holds` requires that they agree."""

    example: ModuleType
    folder: Path

    def holds(self, chain: bytes, key: str) -> bool:
        by_example = self._exits(lambda: self.example.verify(chain, key.encode()))
        file, pinned = self.folder / "chain.ndjson", self.folder / "audit.pub"
        file.write_bytes(chain)
        pinned.write_text(key)
        source = command.AuditSource(None, "default", "", KubeconfigOptions())
        by_product = self._exits(
            lambda: command.verify(source, (file,), None, pinned, output=OutputOptions())
        )
        assert by_example == by_product
        return by_product is None

    @staticmethod
    def _exits(verify: Callable[[], object]) -> int | None:
        try:
            verify()
        except SystemExit as exit_:
            return 1 if isinstance(exit_.code, str) else int(exit_.code or 0)
        return None


@pytest.fixture
def judges(verifier: ModuleType, tmp_path: Path) -> Judges:
    return Judges(verifier, tmp_path)


def export(world: World) -> Lines:
    """Return the chain as `GET /v1/audit` does: all entries, then the newest head."""
    assert world.stream.signed is not None
    return [*(text for _, text in world.stream.rows), head_line(world.stream.signed)]


def text(lines: Lines) -> bytes:
    return "".join(f"{each}\n" for each in lines).encode()


def key_of(lines: Lines) -> str:
    return str(json.loads(lines[-1])["head"]["publicKey"])


@dataclass(frozen=True)
class Sample:
    """A chain of two terms, and the head of the first one."""

    world: World
    lines: Lines
    older_head: str

    @property
    def key(self) -> str:
        return key_of(self.lines)


@pytest.fixture
async def sample() -> Sample:
    world = World()
    await world.term(1, 6)
    assert world.stream.signed is not None
    older = head_line(world.stream.signed)
    await world.term(2, 4)
    return Sample(world, export(world), older)


async def test_a_chain_with_a_gap_and_another_key_holds(judges: Judges, sample: Sample) -> None:
    world = sample.world
    world.stream.flush()
    await world.term(3, 3)
    world.key = FakeKey()
    await world.term(4, 2)
    lines = export(world)
    assert {"gap", "key"} <= {json.loads(each).get("deed") for each in lines}
    assert judges.holds(text(lines), key_of(lines))


async def test_lost_entries_may_be_put_back_before_a_gap(judges: Judges, sample: Sample) -> None:
    copied = sample.lines[:-1]
    sample.world.stream.flush()
    await sample.world.term(3, 3)
    lines = export(sample.world)
    assert judges.holds(text([*copied, *lines]), sample.key)
    assert not judges.holds(text([*copied[:-1], *lines]), sample.key)


async def test_a_gap_with_a_higher_number_holds(judges: Judges, sample: Sample) -> None:
    stream = sample.world.stream
    anchored = len(stream.rows)
    dead = sample.world.chain()
    await dead.open(3)
    await dead.seal([held(number) for number in range(3)])
    stream.rows, stream.signed = stream.rows[:anchored], None
    await sample.world.term(4, 2)
    lines = export(sample.world)
    named = json.loads(lines[anchored])
    assert (named["deed"], named["number"]) == ("gap", anchored + 4)
    assert judges.holds(text(lines), sample.key)


async def pruned_lines(world: World) -> Lines:
    chain = await world.term(3, 3)
    world.now = Millis(world.now + 5_000)
    await chain.prune()
    await chain.anchor()
    return export(world)


async def test_a_beginning_that_retention_removed_may_be_missing(
    judges: Judges, sample: Sample
) -> None:
    lines = await pruned_lines(sample.world)
    assert json.loads(lines[0])["number"] > 1
    assert judges.holds(text(lines), sample.key)
    assert judges.holds(text([sample.older_head, *lines]), sample.key)
    assert not judges.holds(text(lines[1:]), sample.key)


@pytest.mark.parametrize(
    "fields", [{"cluster": "other"}, {"at": 99}], ids=["another cluster", "a wrong signature"]
)
async def test_a_head_of_a_removed_entry_is_checked(
    judges: Judges, sample: Sample, fields: dict[str, Any]
) -> None:
    """Both places count: before the first entry of the file, and after it."""
    read_older = parse_line(sample.older_head)
    assert isinstance(read_older, SignedHead)
    changed = replace(read_older, **fields)
    if "cluster" in fields:
        changed = sample.world.key.signer.sign(changed)
    lines = await pruned_lines(sample.world)
    assert judges.holds(text([lines[0], sample.older_head, *lines[1:]]), sample.key)
    for place in (0, 1):
        forged = [*lines[:place], head_line(changed), *lines[place:]]
        assert not judges.holds(text(forged), sample.key)


async def test_the_head_with_the_highest_number_is_the_newest(
    judges: Judges, sample: Sample
) -> None:
    former = sample.key
    sample.world.key = FakeKey()
    await sample.world.term(3, 2)
    lines = export(sample.world)
    replayed = text([*lines, sample.older_head])
    assert judges.holds(replayed, key_of(lines))
    assert not judges.holds(replayed, former)


async def test_a_chain_that_another_key_signs_is_found(judges: Judges, sample: Sample) -> None:
    other = World()
    await other.term(1, 3)
    assert not judges.holds(text(export(other)), sample.key)


def edit(index: int, /, **fields: Any) -> Callable[[Sample], Lines]:
    def change(sample: Sample) -> Lines:
        lines = sample.lines
        return [*lines[:index], json.dumps(json.loads(lines[index]) | fields), *lines[index + 1 :]]

    return change


def edit_head(**fields: Any) -> Callable[[Sample], Lines]:
    def change(sample: Sample) -> Lines:
        head = json.loads(sample.lines[-1])["head"] | fields
        return [*sample.lines[:-1], json.dumps({"audit": True, "head": head})]

    return change


def write(change: Callable[[str], str]) -> Callable[[Sample], Lines]:
    """Return the chain with entry 4 written in another way."""
    return lambda sample: [*sample.lines[:3], change(sample.lines[3]), *sample.lines[4:]]


def insert(place: int, added: str) -> Callable[[Sample], Lines]:
    return lambda sample: [*sample.lines[:place], added, *sample.lines[place:]]


def sealed_again(sample: Sample) -> Lines:
    """Replace the last entry by another one with a correct hash."""
    last = json.loads(sample.lines[-2])
    entry = seal(Head(last["number"] - 1, last["before"]), last["epoch"], held(99))
    return [*sample.lines[:-2], entry_line(entry), sample.lines[-1]]


def inserted(sample: Sample) -> Lines:
    """Insert an entry, and give all later entries correct numbers and hashes."""
    forged = [*sample.lines[:4]]
    before = parse_line(forged[-1])
    assert isinstance(before, Entry)
    entry = seal(before.head, before.epoch, held(99))
    forged.append(entry_line(entry))
    for later in map(parse_line, sample.lines[4:-1]):
        assert isinstance(later, Entry)
        entry = seal(entry.head, later.epoch, later.record)
        forged.append(entry_line(entry))
    return [*forged, sample.lines[-1]]


def append(record: AuditRecord, epoch: int) -> Callable[[Sample], Lines]:
    """Return the chain with one more entry, which the key of the chain signs."""

    def change(sample: Sample) -> Lines:
        last = json.loads(sample.lines[-2])
        entry = seal(Head(last["number"], last["hash"]), epoch, record)
        head = sample.world.key.signer.sign(SignedHead("c", entry.head, epoch, Millis(99)))
        return [*sample.lines[:-1], entry_line(entry), head_line(head)]

    return change


def wrong_gap(sample: Sample) -> Lines:
    """Append a gap that does not follow the last entry that it names as lost."""
    last = json.loads(sample.lines[-2])
    named = Gap(Head(last["number"], last["hash"]), Head(last["number"], "f" * 64))
    return append(gap_record(Millis(99), named, exact=True, why="lost"), 2)(sample)


def add_head(sample: Sample, signer: Signer, **fields: Any) -> Lines:
    """Return the chain with one more head of its last entry, with a correct signature."""
    head = parse_line(sample.lines[-1])
    assert isinstance(head, SignedHead)
    return [*sample.lines[:-1], head_line(signer.sign(replace(head, **fields))), sample.lines[-1]]


def foreign_head(**fields: Any) -> Callable[[Sample], Lines]:
    """Put a head of the beginning first, which another key signs."""
    head = replace(SignedHead("c", Head(), 1, Millis(1)), **fields)
    return lambda sample: [head_line(FakeKey().signer.sign(head)), *sample.lines]


def forged_gap(sample: Sample) -> Lines:
    """Remove two entries, and name a gap in their place."""
    lines = sample.lines
    before, after = json.loads(lines[3]), json.loads(lines[6])
    facts = {
        "after": {"number": before["number"], "hash": before["hash"]},
        "upTo": {"number": after["number"] - 1, "hash": after["before"]},
    }
    return [*lines[:4], json.dumps(after | {"deed": "gap", "facts": facts}), *lines[7:]]


def forged_end(sample: Sample) -> Lines:
    """Append an entry with a correct hash after the newest head."""
    last = json.loads(sample.lines[-2])
    entry = seal(Head(last["number"], last["hash"]), last["epoch"], held(99))
    return [*sample.lines, entry_line(entry)]


MISSED = '{"audit":true,"missed":{"entries":1,"from":3,"to":3}}'
NESTED = f'{{"audit":true,"missed":{"[" * 100_000}{"]" * 100_000}}}'

UNENDED = "no line feed after the last line"

CASES: dict[str, tuple[Callable[[Sample], Lines], bool]] = {
    "the chain as exported": (lambda sample: sample.lines, True),
    "spaces between names, or CR before LF": (
        write(lambda old: old.replace(",", " , ") + "\r"),
        True,
    ),
    "other escapes of the same text": (write(lambda old: old.replace("pod", "p\\u006fd", 1)), True),
    UNENDED: (lambda sample: sample.lines, True),
    "an older head after its entry": (
        lambda sample: [*sample.lines[:-1], sample.older_head, sample.lines[-1]],
        True,
    ),
    "an older head after the newest": (lambda sample: [*sample.lines, sample.older_head], True),
    "the chain cut at an older head": (
        lambda sample: [*sample.lines[:7], sample.older_head],
        True,
    ),
    "a changed fact": (edit(4, facts={"pod": "other"}), False),
    "a changed time": (edit(4, at=11), False),
    "a changed epoch": (edit(4, epoch=2), False),
    "another name in an entry": (edit(4, more=1), False),
    "another name in a head": (edit_head(more=1), False),
    "an entry removed": (lambda sample: [*sample.lines[:4], *sample.lines[5:]], False),
    "the first entry removed": (lambda sample: sample.lines[1:], False),
    "the last entry removed": (lambda sample: [*sample.lines[:-2], sample.lines[-1]], False),
    "two entries exchanged": (
        lambda s: [*s.lines[:4], s.lines[5], s.lines[4], *s.lines[6:]],
        False,
    ),
    "an entry repeated": (lambda s: [*s.lines[:4], s.lines[3], *s.lines[4:]], False),
    "an entry replaced, with a correct hash": (sealed_again, False),
    "an entry inserted, with correct hashes of all later ones": (inserted, False),
    "a lower epoch, correctly signed": (append(held(99), 1), False),
    "a gap after another entry, correctly signed": (wrong_gap, False),
    "a gap that no key signed": (forged_gap, False),
    "no head": (lambda sample: sample.lines[:-1], False),
    "a head before its entry": (lambda s: [s.lines[-1], *s.lines[:-1]], False),
    "an older head before its entry": (lambda s: [s.older_head, *s.lines], False),
    "a head of another time": (edit_head(at=99), False),
    "a head of another epoch": (edit_head(epoch=1), False),
    "a head of another epoch, correctly signed": (
        lambda sample: add_head(sample, sample.world.key.signer, epoch=1),
        False,
    ),
    "a head of another key, correctly signed": (
        lambda sample: add_head(sample, FakeKey().signer),
        False,
    ),
    "a head of another cluster": (edit_head(cluster="other"), False),
    "a head of no cluster, signed by another key": (foreign_head(cluster=None), False),
    "a head with numbers as text": (edit_head(number="11"), False),
    "a head with a negative time, signed by another key": (foreign_head(at=-1), False),
    "an entry after the newest head": (forged_end, False),
    "a name twice": (write(lambda old: old.replace("{", '{"at":1,', 1)), False),
    "a fraction": (write(lambda old: old.replace('"at":10', '"at":10.0')), False),
    "an integer of 5 000 digits": (
        write(lambda old: old.replace('"at":1', '"at":' + "1" * 5000)),
        False,
    ),
    "a negative number": (write(lambda old: old.replace('"at":', '"at":-')), False),
    "a hash in upper case": (write(lambda old: old[:-66] + old[-66:].upper()), False),
    "a BOM": (lambda sample: ["\ufeff" + sample.lines[0], *sample.lines[1:]], False),
    "an empty line": (insert(3, ""), False),
    "a line of a log": (insert(3, "2026-11-24 the leader started"), False),
    "a line `missed`": (insert(3, MISSED), False),
    "deep nesting": (insert(3, NESTED), False),
    "an incomplete last line": (lambda s: [*s.lines[:-1], s.lines[-1][:-9]], False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_both_programs_give_the_verdict_of_the_page(
    judges: Judges, sample: Sample, name: str
) -> None:
    change, holds = CASES[name]
    changed = change(sample)
    chain = text(changed).removesuffix(b"\n" if name == UNENDED else b"")
    assert chain != text(sample.lines) or name == "the chain as exported"
    assert judges.holds(chain, sample.key) is holds


async def test_invalid_utf8_is_refused(judges: Judges, sample: Sample) -> None:
    assert not judges.holds(text(sample.lines).replace(b'"p1"', b'"p\xff"', 1), sample.key)


async def test_separators_of_unicode_do_not_end_a_line(judges: Judges) -> None:
    """U+2028 and U+0085 may stand unescaped in text: only a line feed ends a line."""
    world = World()
    chain = await world.term(1, 0)
    await chain.seal([AuditRecord(Millis(10), EntryType.HELD, {"pod": "\u2028\u0085\x7fü"})])
    lines = export(world)
    raw = [json.dumps(json.loads(each), ensure_ascii=False) for each in lines]
    assert "\u2028" in raw[1]
    assert judges.holds(text(raw), key_of(lines))


def test_the_table_of_the_page_has_the_verdicts_of_the_cases() -> None:
    rows = PAGE.read_text().split("| case | verdict |\n|---|---|\n")[1].split("\n\n")[0]
    told = dict(row.strip("| ").split(" | ") for row in rows.split("\n"))
    assert told == {name: "holds" if holds else "broken" for name, (_, holds) in CASES.items()}


def vectors() -> list[str]:
    """Return the lines of the code blocks under `Test vectors` in the page."""
    part = PAGE.read_text().split("### Test vectors\n")[1].split("\n## ")[0]
    return [row[4:] for row in part.split("\n") if row.startswith("    ")]


def test_the_vectors_of_the_page_are_true(verifier: ModuleType) -> None:
    secret = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signer = Signer(secret)
    entry = seal(Head(), 1, AuditRecord(Millis(10), EntryType.HELD, {"pod": '"\t\x7f\u2028😀/\\'}))
    head = signer.sign(SignedHead("default", entry.head, 1, Millis(20)))
    body = json.loads(entry_line(entry))
    hashed = verifier.canonical(body, verifier.HASHED).decode()
    signed = verifier.canonical(head.json_fields(), verifier.SIGNED).decode()
    assert vectors() == [entry_line(entry), hashed, head_line(head), signed, signer.public_key]
    assert hashlib.sha256(hashed.encode()).hexdigest() == entry.hash
    secret.public_key().verify(base64.b64decode(head.signature), signed.encode())
    chain, key = text([entry_line(entry), head_line(head)]), signer.public_key.encode()
    assert verifier.verify(chain, key) == "1 entries hold, with 0 gaps"


def test_an_auditor_reads_at_most_60_lines() -> None:
    lines = FILE.read_text().splitlines()
    assert len([each for each in lines if each]) <= 60
    assert max(map(len, lines)) <= 100


def run(*arguments: Path | str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, FILE, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


async def test_example_verifier_prints_its_verdict_in_one_line(
    sample: Sample, tmp_path: Path
) -> None:
    chain, key = tmp_path / "chain", tmp_path / "audit.pub"
    chain.write_bytes(text(sample.lines))
    key.write_text(sample.key + "\n")
    assert run(chain, key) == (0, f"{len(sample.lines) - 1} entries hold, with 0 gaps\n")
    chain.write_bytes(b"\xef\xbb\xbf" + text(sample.lines))
    code, said = run(chain, key)
    assert (code, said.count("\n"), said[:15]) == (1, 1, "broken: line 1:")
    assert run(chain)[0] == 1
