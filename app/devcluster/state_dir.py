"""The state folder of a local cluster: its path, lock, ownership mark and removal.

Only a folder with the mark is ever emptied or removed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from app.core.errors import ClusterError, InvalidInput
from app.devcluster.processes import birth
from app.devcluster.state_files import MARK, FolderKind, require_kind

OWN = "runs"


def state_folder() -> Path:
    """The folder of Fairgate's state on this machine: `$XDG_STATE_HOME/fairgate`."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "fairgate"


def default_folder() -> Path:
    """The folder of the default cluster of a user."""
    return state_folder() / "dev"


def own_folder(name: str) -> Path:
    """Return a folder for a cluster that should end with this process, as in tests.

    If the process ends without taking it down, `abandoned` returns the folder.
    """
    pid = os.getpid()
    return state_folder() / OWN / f"{pid}-{_word(birth(pid))}-{name}"


def abandoned() -> list[Path]:
    """Return the folders of processes that no longer run."""
    with contextlib.suppress(FileNotFoundError):
        return [path for path in sorted((state_folder() / OWN).iterdir()) if _is_abandoned(path)]
    return []


def claim_folder(folder: Path, kind: FolderKind) -> None:
    """Create and mark the folder, readable by its owner only.

    Raises InvalidInput if it has other contents, is of the other kind or cannot be used.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_ours(folder):
            require_kind(folder, kind)
        elif any(folder.iterdir()):
            raise InvalidInput(
                f"{folder} is not empty and holds no local cluster; name another folder by --dir."
            )
        (folder / MARK).write_text(f"{kind.value}\n")
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be used ({error}); name another by --dir.") from error


def is_ours(folder: Path) -> bool:
    """Return whether this folder has the mark of a local cluster."""
    return (folder / MARK).is_file()


def empty_folder(folder: Path) -> None:
    """Remove the contents of the folder, except the mark and the locks."""
    for entry in folder.iterdir():
        if entry.name == MARK or entry.name.endswith(".lock"):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def remove_folder(folder: Path) -> None:
    """Remove a marked folder, the mark last, so that a partly removed folder is still marked."""
    empty_folder(folder)
    shutil.rmtree(folder)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder: one program at a time brings a cluster up or down. Raises ClusterError."""
    with (folder / ".up.lock").open("w") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                f"Another program is bringing the cluster in {folder} up or down; wait for it."
            ) from error
        yield


def _is_abandoned(path: Path) -> bool:
    pid, _, rest = path.name.partition("-")
    born = rest.partition("-")[0]
    return is_ours(path) and pid.isdigit() and _word(birth(int(pid))) != born


def _word(born: str | None) -> str:
    """Return a process start as a short word without `-`, for a file name."""
    boot, _, ticks = (born or "").partition("/")
    return f"{boot[:8]}.{ticks}"
