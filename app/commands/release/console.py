"""Terminal output of `fairgate release`: questions, results, and the progress bar of `--all`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.commands.release.manual_release import ManualReleaseOutcome, ManualReleaseResult
from app.core.kubeconfig import KubeconfigOptions
from app.terminal.output import OutputOptions, as_text

WORTH_SHOWING_SECONDS = 2.0
"""A command that is shorter shows no progress."""

REFRESH_SECONDS = 0.2
LINE_SECONDS = 10.0


class ProgressBar:
    """A progress bar, as a context manager. `report` may be called often."""

    def __init__(
        self, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._next = clock() + WORTH_SHOWING_SECONDS
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None)

    def report(self, what: str, done: int, total: int | None = None) -> None:
        """Report the progress of `what`. `total` is None if unknown."""
        now = self._clock()
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._next = now + LINE_SECONDS
            of = f" of {total}" if total is not None else ""
            self._console.print(f"{what}: {done}{of}", highlight=False, soft_wrap=True)
            return
        self._next = now + REFRESH_SECONDS
        self._bar.start()
        self._bar.tasks[0].total = total  # `update` cannot remove a total
        self._bar.update(self._task, description=what, completed=done, refresh=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


NO, UNREACHABLE = 1, 3


class CommandFailed(Exception):
    """The command ends with a negative result. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ReleaseOptions:
    """Arguments of the command. Either `pod` or `everything` is set."""

    pod: str | None
    everything: bool
    namespace: str | None
    kubeconfig: KubeconfigOptions
    yes: bool
    output: OutputOptions


def as_user(who: str) -> str:
    """Return the end of a sentence that names the user."""
    return f", as {who}" if who else ""


def exit_code(outcomes: Iterable[ManualReleaseOutcome]) -> int:
    """Return the exit code for the pods that were not released."""
    results = {outcome.result for outcome in outcomes}
    if ManualReleaseResult.UNKNOWN in results:
        return UNREACHABLE
    return NO if results else 0


def permission_error(who: str, what: str, binding: str) -> CommandFailed:
    """Return the error for a caller without permission."""
    return CommandFailed(
        f"{who or 'the caller'} may not release {what}: that takes the right `release` on "
        f"podgates.fairgate.io there, which {binding} to the ClusterRole fairgate-operator gives."
    )


def confirm(options: ReleaseOptions, question: str) -> None:
    """Ask for confirmation. Raises No if the user does not confirm."""
    if options.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("nothing was changed.")


def print_result(options: ReleaseOptions, facts: dict[str, Any], text: str) -> None:
    """Print a result in the requested format."""
    if options.output.is_data:
        print(as_text(options.output, facts))
    elif text:
        print(text)
