"""A leader that writes an audit chain into memory."""

from __future__ import annotations

from app.controller.audit_chain import Chain, Retention
from app.controller.audit_writer import Auditor
from app.core.audit.verifier import ChainVerdict, ChainVerifier
from app.core.audit_entry import AuditRecord, Entry, EntryType
from app.core.model import Millis
from app.tls.audit_signing_key import is_signature_valid
from tests.fakes.fake_audit_stream import Copies, FakeAnchor, FakeKey, FakeTrail, Stream

AGE, SIZE = 1000, 10_000_000


class World:
    """One stream, one anchor, one key, and any number of replicas."""

    def __init__(self) -> None:
        self.stream, self.anchor, self.key = Stream(), FakeAnchor(), FakeKey()
        self.copies = Copies()
        self.now = Millis(10)
        self.deposed = 0
        self.retention = Retention(Millis(AGE), SIZE, min_bytes=0)

    def chain(self, *sinks: Copies) -> Chain:
        """Return the chain of a replica that copies its entries to `copies` and `sinks`."""
        return Chain(
            FakeTrail(self.stream),
            self.anchor,
            self.key.load,
            is_signature_valid,
            [self.copies, *sinks],
            "c",
            self.retention,
            lambda: self.now,
        )

    def auditor(self, chain: Chain | None = None) -> Auditor:
        return Auditor(chain or self.chain(), "me", lambda: self.now, self.depose)

    def depose(self) -> None:
        self.deposed += 1

    async def term(self, epoch: int, pods: int, chain: Chain | None = None) -> Chain:
        """Run one leader term: record this number of pods, anchor, and stop."""
        chain = chain or self.chain()
        await chain.open(epoch)
        await chain.seal([held(number) for number in range(pods)])
        await chain.anchor()
        return chain

    def verify(self) -> ChainVerdict:
        """Verify as the command line does."""
        heads = [each for each in (self.anchor.head, self.stream.signed) if each]
        proof = ChainVerifier(heads)
        for entry in self.stream.entries():
            proof.add_entry(entry)
        return proof.verdict()

    def gaps(self) -> list[Entry]:
        return [each for each in self.stream.entries() if each.record.entry_type is EntryType.GAP]


def held(number: int, at: int = 10) -> AuditRecord:
    return AuditRecord(Millis(at), EntryType.HELD, {"pod": f"p{number}"})
