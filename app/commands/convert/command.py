"""Implementation of `fairgate convert`: reads files, prints the result, and notes on stderr."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from app.commands.convert import kueue, slurm, volcano
from app.commands.convert.kubernetes_objects import expect_api_types, read_objects
from app.commands.convert.log_rows import COLUMNS, ConvertedLog
from app.commands.convert.tenant_documents import Notes, write_documents
from app.core.errors import InvalidInput
from app.terminal.object_files import read_text
from app.terminal.output import warn


def convert_kueue(paths: Sequence[Path], managed: Sequence[str]) -> None:
    """Print the Tenants and Pools for Kueue's objects. Raises InvalidInput."""
    notes = Notes()
    objects = read_objects(paths)
    with expect_api_types("Kueue"):
        found = kueue.convert(objects, managed_test(managed), notes)
    _print_documents(found, notes)


def convert_volcano(paths: Sequence[Path], pool: str, managed: Sequence[str]) -> None:
    """Print the Tenants for Volcano's Queues. Raises InvalidInput."""
    notes = Notes()
    objects = read_objects(paths)
    with expect_api_types("Volcano"):
        found = volcano.convert(objects, pool, managed_test(managed), notes)
    _print_documents(found, notes)


def convert_slurm(path: Path, pool: str) -> None:
    """Print the Tenants for a file of `sacctmgr dump`. Raises InvalidInput."""
    notes = Notes()
    _print_documents(slurm.convert(str(path), read_text(str(path)), pool, notes), notes)


def managed_test(managed: Sequence[str]) -> Callable[[str], bool]:
    """Return the test whether a resource is managed. A trailing * stands for any ending."""
    return lambda resource: any(
        resource.startswith(name[:-1]) if name.endswith("*") else resource == name
        for name in managed
    )


def print_log(log: ConvertedLog) -> None:
    """Print a log for `fairgate replay`, and the numbers of rows on stderr."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in log.rows():
        writer.writerow(row)
    _print_notes(log.summary())


def _print_documents(documents: Sequence[dict[str, Any]], notes: Notes) -> None:
    if not documents:
        raise InvalidInput("The input has no object to convert; give the queues.")
    print(write_documents(documents), end="")
    _print_notes(notes.lines())


def _print_notes(lines: Iterable[str]) -> None:
    for line in lines:
        warn(line)
