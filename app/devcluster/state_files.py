"""The files in the state folder of a local cluster or node: its mark, and records of earlier runs.

The mark has the kind of the folder, so that no command removes a folder of the other kind.
"""

from __future__ import annotations

import shlex
from enum import Enum
from pathlib import Path
from typing import TypeVar

import msgspec

from app.core.errors import ClusterError, InvalidInput

MARK = ".fairgate-cluster"
_OF_A_NODE = ("kernel.json", "node.json")
_OF_A_CLUSTER = ("cluster.json",)

T = TypeVar("T")


class FolderKind(Enum):
    """The kind of a folder. The value is the text of its mark."""

    CLUSTER = "cluster"
    NODE = "node"


class StateUnreadable(ClusterError):
    """A file of the folder is damaged, or another version of Fairgate wrote it."""


def read_kind(folder: Path) -> FolderKind | None:
    """Return the kind of a marked folder; None if it has no files that decide it.

    Earlier versions wrote an empty mark. Raises StateUnreadable for another mark.
    """
    written = (folder / MARK).read_text(errors="replace").strip()
    if not written:
        if any((folder / name).exists() for name in _OF_A_NODE):
            return FolderKind.NODE
        if any((folder / name).exists() for name in _OF_A_CLUSTER):
            return FolderKind.CLUSTER
        return None
    try:
        return FolderKind(written)
    except ValueError as error:
        raise StateUnreadable(
            f"{folder / MARK} is of another version of Fairgate; use that version, or name another "
            "folder by --dir."
        ) from error


def require_kind(folder: Path, kind: FolderKind) -> None:
    """Raise InvalidInput if a marked folder is of the other kind."""
    found = read_kind(folder)
    if found not in (None, kind):
        raise InvalidInput(
            f"{folder} has a local {found.value}, not a {kind.value}; take it down by "
            f"`{down_command(folder)}`, or name another folder by --dir."
        )


def down_command(folder: Path) -> str:
    """Return the command that takes down the cluster or node of a folder."""
    of_node = (folder / MARK).is_file() and read_kind(folder) is FolderKind.NODE
    return f"fairgate dev {'node ' if of_node else ''}down --dir {shlex.quote(str(folder))}"


def read_record(folder: Path, name: str, kind: type[T]) -> T | None:
    """Return the contents of a file in the folder; None if it does not exist.

    Raises StateUnreadable.
    """
    try:
        return msgspec.json.decode((folder / name).read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise StateUnreadable(
            f"{folder / name} is damaged, or of another version of Fairgate ({error}); run "
            f"`{down_command(folder)}` first."
        ) from error
