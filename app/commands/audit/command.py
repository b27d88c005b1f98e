"""Implementation of `fairgate audit`: reads the chain, checks it against signed heads, prints.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

from app.commands.audit.verification_report import facts, sentence
from app.config import setting_parsers
from app.core.audit.codec import ForeignLine, SignedHead, head_line, parse_line, parse_stored_head
from app.core.audit.fields import is_about
from app.core.audit.verifier import BrokenChain, ChainVerdict, ChainVerifier, HeadTooNew
from app.core.audit_entry import Entry
from app.core.durations import parse_duration
from app.core.errors import InvalidInput, InvalidSettings
from app.core.kubeconfig import KubeconfigOptions
from app.core.model import Millis
from app.kube import kubeconfig as kubeconfig_files
from app.kube.audit_anchor import NAME, KeptAnchor
from app.kube.client import Client
from app.ports.audit import AuditReader, iterate_lines
from app.store.audit_stream import RedisAuditReader
from app.store.connection import Server
from app.terminal.output import OutputOptions, as_text, warn
from app.tls.audit_signing_key import is_signature_valid
from app.tls.audit_signing_key import parse_public_key as read_key

NO = 1
TRIES = 5
"""Attempts to verify a chain that changes during the walk."""

PATIENCE = 2.0
"""Seconds before the first progress message, and between two."""


class VerificationFailed(Exception):
    """The chain cannot be trusted, for a reason that is not a single entry."""


@dataclass(frozen=True, slots=True)
class AuditSource:
    """Redis with the entries, and the cluster with the anchored head."""

    redis_url: str | None
    cluster: str
    namespace: str
    kubeconfig: KubeconfigOptions


class VerifyProgress:
    """Prints progress to standard error if the command takes long."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PATIENCE
        self._count = 0

    def count_entry(self) -> None:
        """Count one entry."""
        self._count += 1
        if self._count % 100 == 0 and time.monotonic() >= self._next:
            self._next = time.monotonic() + PATIENCE
            warn(f"{self._count} entries so far")


def verify(
    source: AuditSource,
    files: tuple[Path, ...],
    head: Path | None,
    key: Path | None,
    *,
    copies: bool = False,
    output: OutputOptions,
) -> None:
    """Print whether the chain is intact. Raises SystemExit(1) if it is not, and FairgateError.

    `copies`: the files are logs or copies of a part of the chain, not one whole chain.
    """
    _check_files(files, copies=copies)
    if not files and not source.redis_url:
        raise InvalidSettings(
            "Say where the chain is: name its file, or Redis by --redis-url or FAIRGATE_REDIS_URL."
        )
    given = _head_in(head) if head else None
    pinned = read_key(_text(key)) if key else None
    try:
        if given is not None and not is_signature_valid(given):
            raise VerificationFailed(f"the signature of the head in {head} does not hold")
        skipped = 0
        if not files:
            verdict = asyncio.run(_in_redis(source, given))
        elif copies:
            verdict, skipped = _in_copies(files, given)
        else:
            verdict = _in_whole_file(files[0], given)
        signed = verdict.newest_signed_head
        if pinned is not None and (signed is None or signed.public_key != pinned):
            raise VerificationFailed(f"the newest signed head is not signed by the key in {key}")
    except HeadTooNew as error:
        _fail(output, error.number, _too_new(error, head) if files else error.why)
    except BrokenChain as error:
        _fail(output, error.number, error.why)
    except VerificationFailed as no:
        _fail(output, None, str(no))
    if output.is_data:
        print(as_text(output, facts(verdict, skipped)))
    else:
        print(sentence(verdict, skipped, is_pinned=pinned is not None))


def _too_new(error: HeadTooNew, head: Path | None) -> str:
    return (
        f"the head in {head} is newer than the entries, which end with entry {error.last}. If you "
        "took the head after the export, export again and verify that with this head. Otherwise "
        "the end was removed"
    )


def export(
    source: AuditSource,
    since: str | None,
    until: str | None,
    tenant: str | None,
    output: Path | None,
) -> None:
    """Print entries. Raises FairgateError."""
    now = Millis(time.time_ns() // 1_000_000)
    first = _moment(since, now) if since else None
    last = _moment(until, now) if until else None
    if output is None:
        try:
            asyncio.run(_export(source, first, last, tenant, sys.stdout))
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
        with _replacement(output) as file:
            asyncio.run(_export(source, first, last, tenant, file))
    except OSError as error:
        raise InvalidInput(
            f"{output} cannot be written: {error.strerror}. Its folder must be writable, too, "
            "because the export replaces the file at its end."
        ) from error


@contextmanager
def _replacement(path: Path) -> Iterator[TextIO]:
    """Yield a file that replaces `path` after the block. After an error, `path` stays as it was."""
    if path.exists() and not path.is_file():  # a pipe or a device
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    path = Path(os.path.realpath(path))  # a link stays a link
    draft = path.with_name(f".fairgate-{secrets.token_hex(8)}")
    try:
        with draft.open("x", encoding="utf-8") as file:
            if path.exists():
                shutil.copymode(path, draft)
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


async def _export(
    source: AuditSource,
    since: Millis | None,
    until: Millis | None,
    tenant: str | None,
    file: TextIO,
) -> None:
    progress = VerifyProgress()
    async with _reader(source) as reader:
        ending = await reader.read_tail()
        async for number, text in iterate_lines(reader, 0, ending.last_head.number):
            progress.count_entry()
            try:
                entry = parse_line(text)
            except InvalidInput as error:
                raise BrokenChain(number, str(error)) from error
            if not isinstance(entry, Entry):
                raise BrokenChain(number, "it is no entry")
            at = entry.record.at
            is_then = (since is None or at >= since) and (until is None or at < until)
            if is_then and (tenant is None or is_about(entry.record.facts, tenant)):
                file.write(text + "\n")
        if ending.signed_head and since is None and until is None and tenant is None:
            file.write(head_line(ending.signed_head) + "\n")


async def _in_redis(source: AuditSource, given: SignedHead | None) -> ChainVerdict:
    async def anchored() -> SignedHead:
        return given or await _anchored(source)

    async with _reader(source) as reader:
        return await verify_stream(reader, anchored)


async def verify_stream(
    reader: AuditReader, anchored: Callable[[], Awaitable[SignedHead]]
) -> ChainVerdict:
    """Return the verdict on a chain that may grow during the walk. Raises BrokenChain and No."""
    seen: tuple[int, str] | None = None
    for left in reversed(range(TRIES)):
        head, ending = await anchored(), await reader.read_tail()
        heads = [head] if ending.signed_head is None else [head, ending.signed_head]
        if not is_signature_valid(heads[-1]):
            raise BrokenChain(ending.last_head.number, "the signature of the head does not hold")
        if heads[-1].public_key != head.public_key:
            raise VerificationFailed(
                "the head in Redis is signed by another key than the one in the cluster"
            )
        try:
            return await _walk(reader, ChainVerifier(heads), ending.last_head.number)
        except BrokenChain as error:
            found = (error.number, error.why)
            if (
                not left
                or found == seen
                or (await reader.read_tail()).last_head == ending.last_head
            ):
                raise  # else retention or a leader may have changed the chain during the walk
            seen = found
    raise AssertionError("the last try returns, or raises")


async def _walk(reader: AuditReader, proof: ChainVerifier, last: int) -> ChainVerdict:
    progress = VerifyProgress()
    async for number, text in iterate_lines(reader, 0, last):
        progress.count_entry()
        try:
            entry = parse_line(text)
        except InvalidInput as error:
            raise BrokenChain(number, str(error)) from error
        if not isinstance(entry, Entry) or entry.number != number:
            raise BrokenChain(number, "what stands in its place is not that entry")
        proof.add_entry(entry)
    return proof.verdict()


@asynccontextmanager
async def _reader(source: AuditSource) -> AsyncIterator[RedisAuditReader]:
    if not source.redis_url:
        raise InvalidSettings("Say where Redis is: --redis-url or FAIRGATE_REDIS_URL.")
    server = Server.connect(setting_parsers.redis_url(source.redis_url))
    try:
        yield RedisAuditReader(server, source.cluster)
    finally:
        await server.close()


async def _anchored(source: AuditSource) -> SignedHead:
    who = kubeconfig_files.find_caller(source.kubeconfig, os.environ)
    client = await Client.connect_with(who.options)
    try:
        found = await KeptAnchor(client, source.namespace).read_anchored_head()
    finally:
        await client.close()
    where = f"ConfigMap {source.namespace}/{NAME}"
    if found is None:
        raise VerificationFailed(f"{where} holds no signed head to hold the entries against")
    if not is_signature_valid(found):
        raise VerificationFailed(f"the signature of the head in {where} does not hold")
    if found.cluster != source.cluster:
        raise VerificationFailed(
            f"{where} is of cluster {found.cluster}, not {source.cluster}: use --cluster"
        )
    return found


def _check_files(files: tuple[Path, ...], *, copies: bool) -> None:
    if copies and not files:
        raise InvalidInput("--copies is for files; name them, or a folder.")
    if not copies and (len(files) > 1 or any(map(_is_folder, files))):
        raise InvalidInput(
            "Several files, or a folder, are copies of parts of a chain; verify them with --copies."
        )


def _in_whole_file(file: Path, given: SignedHead | None) -> ChainVerdict:
    """Verify a file that is one whole chain: each line counts."""
    proof, progress = ChainVerifier([given] if given else ()), VerifyProgress()
    for where, raw in _lines((file,)):
        try:
            found = parse_line(raw.decode())
        except ForeignLine as error:
            raise VerificationFailed(f"{where}: {error}; logs and copies need --copies") from error
        except (InvalidInput, UnicodeDecodeError) as error:
            raise VerificationFailed(f"{where}: {error}") from error
        if found is None:
            raise VerificationFailed(f"{where}: a line of missed entries, which needs --copies")
        _add(proof, found, where, progress)
    return _verdict(proof)


def _in_copies(files: tuple[Path, ...], given: SignedHead | None) -> tuple[ChainVerdict, int]:
    """Verify logs or copies. Return the verdict, and the number of lines that were skipped."""
    proof, progress = ChainVerifier([given] if given else (), copies=True), VerifyProgress()
    skipped = 0
    for where, raw in _lines(files):
        try:
            found = parse_line(raw.decode(errors="replace"))
        except ForeignLine:
            skipped += 1  # log lines may be mixed with entries
            continue
        except InvalidInput as error:
            if not raw.endswith(b"\n"):
                skipped += 1  # an incomplete last line, which its writer writes again later
                continue
            raise VerificationFailed(f"{where}: {error}") from error
        if found is not None:
            _add(proof, found, where, progress)
    return _verdict(proof), skipped


def _add(
    proof: ChainVerifier, found: Entry | SignedHead, where: str, progress: VerifyProgress
) -> None:
    if isinstance(found, Entry):
        progress.count_entry()
        proof.add_entry(found)
        return
    if not is_signature_valid(found):
        raise VerificationFailed(f"{where}: the signature of the head does not hold")
    proof.check_head(found)


def _verdict(proof: ChainVerifier) -> ChainVerdict:
    verdict = proof.verdict()
    if verdict.last is None:
        raise VerificationFailed("there are no entries in these files")
    if verdict.newest_signed_head is None:
        raise VerificationFailed("there is no signed head of these entries, so nothing proves them")
    return verdict


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, bytes]]:
    for path in files:
        if str(path) == "-":
            yield from _numbered("standard input", sys.stdin.buffer)
            continue
        for file in sorted(path.glob("*.ndjson")) if _is_folder(path) else [path]:
            try:
                with file.open("rb") as lines:
                    yield from _numbered(str(file), lines)
            except OSError as error:
                raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError as error:  # of a name that is too long, or in a folder without the right
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from error


def _numbered(name: str, lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    for count, raw in enumerate(lines, 1):
        yield f"{name}, line {count}", raw


def _head_in(path: Path) -> SignedHead:
    try:
        body = json.loads(_text(path))
    except ValueError as error:
        raise InvalidInput(f"{path} holds no JSON ({error}); give a signed head.") from error
    for name in ("data", "head"):
        if isinstance(body, dict) and isinstance(body.get(name), dict):
            body = body[name]
    try:
        return parse_stored_head(body)
    except InvalidInput as error:
        raise InvalidInput(f"{path} holds no signed head: {error}.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error


def _moment(written: str, now: Millis) -> Millis:
    """Return a time, given as RFC 3339 or as a duration before `now`. Raises InvalidInput."""
    try:
        return Millis(now - parse_duration(written))
    except InvalidInput:
        pass
    try:
        moment = datetime.fromisoformat(written)
    except ValueError as error:
        raise InvalidInput(
            f"{written[:40]!r} is no time; write 2026-01-31T08:00:00Z, or 2h for two hours ago."
        ) from error
    if moment.tzinfo is None:
        raise InvalidInput(f"{written[:40]!r} has no time zone; end it with Z for UTC.")
    return Millis(int(moment.timestamp() * 1000))


def _fail(output: OutputOptions, number: int | None, why: str) -> None:
    if output.is_data:
        print(as_text(output, {"holds": False, "number": number, "why": why}))
    what = "the audit chain does not hold" if number is None else f"entry {number} does not hold"
    warn(f"{what}: {why}.")
    raise SystemExit(NO)
