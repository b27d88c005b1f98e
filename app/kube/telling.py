"""How `fairgate release` speaks with people: questions, results, refusals.

Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.kube.by_hand import Outcome, Result

NO, UNREACHABLE = 1, 3


class No(Exception):
    """The answer is no; says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `pod` without `everything`, or the other way round."""

    pod: str | None
    everything: bool
    namespace: str | None
    kubeconfig: Path | None
    yes: bool
    output: str


def signed(who: str) -> str:
    """Return the end of a sentence that names who did it."""
    return f", as {who}" if who else ""


def code_of(outcomes: Iterable[Outcome]) -> int:
    """Return the exit code for pods that could not be released."""
    results = {outcome.result for outcome in outcomes}
    if Result.UNKNOWN in results:
        return UNREACHABLE
    return NO if results else 0


def denied(who: str, what: str, binding: str) -> No:
    """Return the refusal of a caller without the right."""
    return No(
        f"{who or 'the caller'} may not release {what}: that takes the right `release` on "
        f"podgates.fairgate.io there, which {binding} to the ClusterRole fairgate-operator gives."
    )


def ask(options: Options, question: str) -> None:
    """Go on only if the person says yes. Raises No."""
    if options.yes:
        return
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise No("nothing was changed.")


def show(options: Options, facts: dict[str, Any], text: str) -> None:
    """Print a result, as was asked for."""
    if options.output == "json":
        print(json.dumps(facts, indent=2))
    elif text:
        print(text)


def tell(sentence: str) -> None:
    """Say something that is not the result."""
    print(f"fairgate: {sentence}", file=sys.stderr)
