"""A `Recorder` that remembers what it was told, and keeps the notes of it."""

from __future__ import annotations

from app.core.audit import Deed, Record


class FakeRecorder:
    """`records` in order and `notes` by key."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.notes: dict[str, str] = {}

    def record(self, record: Record, /) -> None:
        self.records.append(record)
        for key, text in record.notes:
            self.note(key, text)

    def forget(self, key: str, /) -> None:
        self.note(key, "")

    def note(self, key: str, text: str) -> None:
        """Keep this; nothing at all is kept of what is empty."""
        if text:
            self.notes[key] = text
        else:
            self.notes.pop(key, None)

    def told(self, deed: Deed) -> list[Record]:
        """Return the records of one deed."""
        return [record for record in self.records if record.deed is deed]
