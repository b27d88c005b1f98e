"""`fairgate audit verify` of files: a whole chain, or copies of its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.commands.audit import command
from app.core.audit.codec import SignedHead, entry_line, head_line
from app.core.audit_entry import Head, seal
from app.core.errors import InvalidInput
from app.core.kubeconfig import KubeconfigOptions
from app.terminal.output import OutputFormat, OutputOptions
from tests.support.audit_world import World, held
from tests.support.command_line import fairgate

HERE = command.AuditSource(None, "default", "", KubeconfigOptions())

JSON = OutputOptions(OutputFormat.JSON)


@pytest.fixture
async def lines() -> list[str]:
    """A chain of a key entry and five others, with its head."""
    world = World()
    await world.term(1, 5)
    assert world.stream.signed is not None
    return [*(text for _, text in world.stream.rows), head_line(world.stream.signed)]


class Shell:
    """Runs `verify` over one file with the given bytes."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.file = folder / "chain.ndjson"

    def verify(
        self, chain: bytes, *, copies: bool = False, head: Path | None = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the exit code and the JSON output."""
        self.file.write_bytes(chain)
        code = 0
        try:
            command.verify(
                HERE,
                (self.file,),
                head,
                None,
                copies=copies,
                output=JSON,
            )
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, json.loads(self._capsys.readouterr().out)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, capsys)


def text(lines: list[str]) -> bytes:
    return "".join(f"{each}\n" for each in lines).encode()


def test_without_a_file_and_redis_both_ways_are_named() -> None:
    with pytest.raises(InvalidInput, match="name its file, or Redis by --redis-url"):
        command.verify(HERE, (), None, None, output=JSON)


def test_copies_report_absent_unsigned_and_skipped_lines(shell: Shell, lines: list[str]) -> None:
    last = json.loads(lines[-2])
    unsigned = entry_line(seal(Head(last["number"], last["hash"]), last["epoch"], held(9)))
    chain = text(["the leader started", *lines[2:], unsigned]) + lines[3][:40].encode()
    code, said = shell.verify(chain, copies=True)
    counts = {name: said[name] for name in ("entries", "absent", "unsigned", "skipped")}
    assert (code, counts) == (0, {"entries": 5, "absent": 2, "unsigned": 1, "skipped": 2})
    assert shell.verify(chain)[0] == 1


@pytest.mark.parametrize("copies", [False, True])
def test_a_chain_without_a_head_is_refused(shell: Shell, lines: list[str], copies: bool) -> None:
    code, said = shell.verify(text(lines[:-1]), copies=copies)
    assert code == 1
    assert "no signed head" in said["why"]


@pytest.mark.parametrize("copies", [False, True])
async def test_an_older_head_at_the_end_changes_no_count(shell: Shell, copies: bool) -> None:
    world = World()
    heads = []
    for term in (1, 2):
        await world.term(term, 2)
        assert world.stream.signed is not None
        heads.append(head_line(world.stream.signed))
    rows = [row for _, row in world.stream.rows]
    code, said = shell.verify(text([*rows, heads[1], heads[0]]), copies=copies)
    assert (code, said["unsigned"], said["head"]["number"]) == (0, 0, 5)


def test_an_unreadable_line_is_named(shell: Shell, lines: list[str]) -> None:
    code, said = shell.verify(text([*lines[:2], lines[2][:30], *lines[3:]]))
    assert code == 1
    assert f"{shell.file}, line 3: " in said["why"]


def test_message_states_whether_an_entry_is_missing_or_differs(
    shell: Shell, lines: list[str]
) -> None:
    whys = []
    for chain in (lines[:-2], [*lines[:-2], *_other_end(lines)]):
        code, said = shell.verify(text([*chain, lines[-1]]))
        assert code == 1
        whys.append(said["why"])
    assert whys == [
        "a signed head names it, and the last before that head is 5",
        "a signed head names another hash for it",
    ]


def test_a_stored_head_that_is_newer_than_the_file_is_named_as_such(
    shell: Shell, lines: list[str]
) -> None:
    head = shell.folder / "head.json"
    head.write_text(json.dumps(json.loads(lines[-1])["head"]))
    code, said = shell.verify(text(lines[:-2]), head=head)
    assert (code, said["number"]) == (1, 6)
    assert f"the head in {head} is newer than the entries, which end with entry 5" in said["why"]
    assert "export again and verify that with this head" in said["why"]
    assert shell.verify(text(lines), head=head)[0] == 0


def _other_end(lines: list[str]) -> list[str]:
    before = json.loads(lines[-3])
    return [entry_line(seal(Head(before["number"], before["hash"]), before["epoch"], held(77)))]


def test_a_folder_needs_copies(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "a.ndjson").write_bytes(text(lines))
    for files in ((tmp_path,), (tmp_path / "a.ndjson", tmp_path / "a.ndjson")):
        with pytest.raises(InvalidInput, match="--copies"):
            command.verify(HERE, files, None, None, output=JSON)
        command.verify(HERE, files, None, None, copies=True, output=JSON)
    with pytest.raises(InvalidInput, match="--copies"):
        command.verify(HERE, (), None, None, copies=True, output=JSON)


def test_a_pinned_key_is_pem_or_base64(tmp_path: Path, lines: list[str]) -> None:
    key = json.loads(lines[-1])["head"]["publicKey"]
    chain, pinned = tmp_path / "a.ndjson", tmp_path / "audit.pub"
    chain.write_bytes(text(lines))
    for form in (key, f"-----BEGIN PUBLIC KEY-----\n{key}\n-----END PUBLIC KEY-----\n"):
        pinned.write_text(form)
        command.verify(HERE, (chain,), None, pinned, output=JSON)
    pinned.write_text("no key")
    with pytest.raises(InvalidInput, match="PEM, or the base64"):
        command.verify(HERE, (chain,), None, pinned, output=JSON)


async def test_a_time_beyond_the_calendar_is_printed_as_a_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    chain = await world.term(1, 0)
    await chain.seal([held(1, at=10**17)])
    signed: SignedHead | None = world.stream.signed
    assert signed is not None
    file = tmp_path / "a.ndjson"
    file.write_bytes(text([*(row for _, row in world.stream.rows), head_line(signed)]))
    command.verify(HERE, (file,), None, None, output=OutputOptions())
    assert "to 100000000000000000 ms (number 2)" in capsys.readouterr().out


def test_a_name_that_the_system_refuses_is_wrong_input() -> None:
    name = "a" * 300
    done = fairgate("audit", "verify", name)
    sentence = f"fairgate: {name} cannot be read: File name too long.\n"
    assert (done.returncode, done.stderr) == (2, sentence)
