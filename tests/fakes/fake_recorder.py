"""A `Recorder` that stores its records and audit markers."""

from __future__ import annotations

from app.core.audit_entry import AuditRecord, EntryType


class FakeRecorder:
    """`records` in order, and `notes` by key. It drops records while `is_full`."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []
        self.notes: dict[str, str] = {}
        self.is_full = False

    def can_record(self) -> bool:
        return not self.is_full

    def record(self, record: AuditRecord, /) -> None:
        if self.is_full:
            return
        self.records.append(record)
        for key, text in record.audit_markers:
            self.note(key, text)

    def clear_marker(self, key: str, /) -> None:
        self.note(key, "")

    def note(self, key: str, text: str) -> None:
        """Store an audit marker; an empty text removes it."""
        if text:
            self.notes[key] = text
        else:
            self.notes.pop(key, None)

    def told(self, entry_type: EntryType) -> list[AuditRecord]:
        """Return the records of one type."""
        return [record for record in self.records if record.entry_type is entry_type]
