"""What `fairgate audit` does: reads a chain, holds it against its signed heads, and tells.

Results go to standard output, everything else to standard error. Changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TextIO

from app import settings_text
from app.audit_ports import Ending
from app.core.audit import Entry
from app.core.chain.audit_lines import NotOurs, SignedHead, head_line, read, read_head
from app.core.chain.audit_proof import BrokenChain, Proof, Verdict
from app.core.durations import duration
from app.core.errors import InvalidInput, InvalidSettings
from app.core.model import Millis
from app.kube import caller
from app.kube.anchor import NAME, KeptAnchor
from app.kube.client import Client
from app.store.audit import AuditReader
from app.store.connection import Server
from app.tls.signing import holds
from app.tls.signing import public_key as read_key
from app.wiring.audit_words import facts, sentence

NO = 1
PAGE = 1000
TRIES = 5
"""Walks over a chain that changes meanwhile."""

PATIENCE = 2.0
"""Seconds before, and between, words about how far it is."""


class No(Exception):
    """The chain cannot be trusted, and it is not one entry that shows it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the entries are, and the cluster that keeps their head."""

    redis_url: str | None
    cluster: str
    namespace: str
    kubeconfig: Path | None


class Readable(Protocol):
    """Where a chain can be read."""

    async def ending(self) -> Ending:
        """Return how it ends."""

    async def lines(self, after: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return some entries above a number, each with its own."""


class Progress:
    """Says on standard error how far it is, once it takes long."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PATIENCE
        self._count = 0

    def count(self) -> None:
        """One entry more."""
        self._count += 1
        if self._count % 100 == 0 and time.monotonic() >= self._next:
            self._next = time.monotonic() + PATIENCE
            print(f"fairgate: {self._count} entries so far", file=sys.stderr)


def verify(
    source: Source, files: tuple[Path, ...], head: Path | None, key: Path | None, *, as_json: bool
) -> None:
    """Tell whether the chain holds. Raises FairgateError, and SystemExit with 1 if it does not."""
    given = _head_in(head) if head else None
    pinned = read_key(_text(key)) if key else None
    try:
        if given is not None and not holds(given):
            raise No(f"the signature of the head in {head} does not hold")
        verdict = _in_files(files, given) if files else asyncio.run(_in_redis(source, given))
        signed = verdict.signed
        if pinned is not None and (signed is None or signed.key != pinned):
            raise No(f"the newest signed head is not signed by the key in {key}")
    except BrokenChain as error:
        _refuse(as_json, error.number, error.why)
    except No as no:
        _refuse(as_json, None, str(no))
    if as_json:
        print(json.dumps(facts(verdict), indent=2))
    else:
        print(sentence(verdict, is_pinned=pinned is not None))


def export(
    source: Source, since: str | None, until: str | None, tenant: str | None, output: Path | None
) -> None:
    """Print entries. Raises FairgateError."""
    now = Millis(time.time_ns() // 1_000_000)
    first = _moment(since, now) if since else None
    last = _moment(until, now) if until else None
    if output is None:
        try:
            asyncio.run(_export(source, first, last, tenant, sys.stdout))
            sys.stdout.flush()
        except BrokenPipeError:  # whoever reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    try:
        with output.open("w", encoding="utf-8") as file:
            asyncio.run(_export(source, first, last, tenant, file))
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror}.") from error


async def _export(
    source: Source, since: Millis | None, until: Millis | None, tenant: str | None, file: TextIO
) -> None:
    progress = Progress()
    async with _reader(source) as reader:
        ending = await reader.ending()
        async for number, text in _pages(reader, ending.last.number):
            progress.count()
            try:
                entry = read(text)
            except InvalidInput as error:
                raise BrokenChain(number, str(error)) from error
            if not isinstance(entry, Entry):
                raise BrokenChain(number, "it is no entry")
            at, named = entry.record.at, entry.record.facts.get("tenant")
            is_then = (since is None or at >= since) and (until is None or at < until)
            if is_then and (tenant is None or named == tenant):
                file.write(text + "\n")
        if ending.signed and since is None and until is None and tenant is None:
            file.write(head_line(ending.signed) + "\n")


async def _in_redis(source: Source, given: SignedHead | None) -> Verdict:
    async def anchored() -> SignedHead:
        return given or await _anchored(source)

    async with _reader(source) as reader:
        return await prove(reader, anchored)


async def prove(reader: Readable, anchored: Callable[[], Awaitable[SignedHead]]) -> Verdict:
    """Return the verdict on a chain that may grow meanwhile. Raises BrokenChain and No."""
    seen: tuple[int, str] | None = None
    for left in reversed(range(TRIES)):
        head, ending = await anchored(), await reader.ending()
        heads = [head] if ending.signed is None else [head, ending.signed]
        if not holds(heads[-1]):
            raise BrokenChain(ending.last.number, "the signature of the head does not hold")
        if heads[-1].key != head.key:
            raise No("the head in Redis is signed by another key than the one in the cluster")
        try:
            return await _walk(reader, Proof(heads), ending.last.number)
        except BrokenChain as error:
            found = (error.number, error.why)
            if not left or found == seen or (await reader.ending()).last == ending.last:
                raise  # else retention, or a leader, may have changed it under our eyes
            seen = found
    raise AssertionError("the last try returns, or raises")


async def _walk(reader: Readable, proof: Proof, last: int) -> Verdict:
    progress = Progress()
    async for number, text in _pages(reader, last):
        progress.count()
        try:
            entry = read(text)
        except InvalidInput as error:
            raise BrokenChain(number, str(error)) from error
        if not isinstance(entry, Entry) or entry.number != number:
            raise BrokenChain(number, "what stands in its place is not that entry")
        proof.take(entry)
    return proof.verdict()


async def _pages(reader: Readable, last: int) -> AsyncIterator[tuple[int, str]]:
    after = 0
    while after < last:
        rows = await reader.lines(after, PAGE)
        if not rows:
            return
        for number, text in rows:
            if number <= last:
                yield number, text
        after = max(after + 1, rows[-1][0])  # always on, whatever somebody put there


@asynccontextmanager
async def _reader(source: Source) -> AsyncIterator[AuditReader]:
    if not source.redis_url:
        raise InvalidSettings("Say where Redis is: --redis-url or FAIRGATE_REDIS_URL.")
    server = Server.connect(settings_text.redis_url(source.redis_url))
    try:
        yield AuditReader(server, source.cluster)
    finally:
        await server.close()


async def _anchored(source: Source) -> SignedHead:
    who = caller.find(source.kubeconfig, os.environ)
    client = await Client.connect(who.kubeconfig)
    try:
        found = await KeptAnchor(client, source.namespace).anchored()
    finally:
        await client.close()
    where = f"ConfigMap {source.namespace}/{NAME}"
    if found is None:
        raise No(f"{where} holds no signed head to hold the entries against")
    if not holds(found):
        raise No(f"the signature of the head in {where} does not hold")
    if found.cluster != source.cluster:
        raise No(f"{where} is of cluster {found.cluster}, not {source.cluster}: use --cluster")
    return found


def _in_files(files: tuple[Path, ...], given: SignedHead | None) -> Verdict:
    proof, progress = Proof([given] if given else (), in_files=True), Progress()
    for where, text in _lines(files):
        try:
            found = read(text)
        except NotOurs:
            continue  # a log may stand in between
        except InvalidInput as error:
            if not text.endswith("\n"):
                continue  # cut short: its writer ended over it, and writes it again
            raise No(f"{where}: {error}") from error
        if isinstance(found, Entry):
            progress.count()
            proof.take(found)
        elif found is not None:
            if not holds(found):
                raise No(f"{where}: the signature of the head does not hold")
            proof.vouch(found)
    verdict = proof.verdict()
    if verdict.last is None:
        raise No("there are no entries in these files")
    return verdict


def _lines(files: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    for path in files:
        if str(path) == "-":
            yield from (("standard input", text) for text in sys.stdin)
            continue
        for file in sorted(path.glob("*.ndjson")) if path.is_dir() else [path]:
            try:
                with file.open(encoding="utf-8", errors="replace") as lines:
                    for count, text in enumerate(lines, 1):
                        yield f"{file}, line {count}", text
            except OSError as error:
                raise InvalidInput(f"{file} cannot be read: {error.strerror}.") from error


def _head_in(path: Path) -> SignedHead:
    try:
        body = json.loads(_text(path))
    except ValueError as error:
        raise InvalidInput(f"{path} holds no JSON ({error}); give a signed head.") from error
    for name in ("data", "head"):
        if isinstance(body, dict) and isinstance(body.get(name), dict):
            body = body[name]
    try:
        return read_head(body)
    except InvalidInput as error:
        raise InvalidInput(f"{path} holds no signed head: {error}.") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error


def _moment(written: str, now: Millis) -> Millis:
    """Return a time: RFC 3339, or how long ago."""
    try:
        return Millis(now - duration(written))
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


def _refuse(as_json: bool, number: int | None, why: str) -> None:
    if as_json:
        print(json.dumps({"holds": False, "number": number, "why": why}, indent=2))
    what = "the audit chain does not hold" if number is None else f"entry {number} does not hold"
    print(f"fairgate: {what}: {why}.", file=sys.stderr)
    raise SystemExit(NO)
