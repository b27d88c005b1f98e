"""Who runs which tests, when processes share them.

Tests that share a set-up stay in one process, one after the other: a cluster takes ten to twenty
seconds to start, and would otherwise be started in every process. What is cheap comes first, and
what shares the clusters of a whole run last, so that none of them stands idle beside other tests.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

from tests.e2e.attacks.ground import MODES

ORDER = ("unit", "simulation", "property", "faults", "e2e/attacks")
"""Folders, in the order in which they run; those not named come last."""

_MODE = re.compile(rf"tests/e2e/attacks/.*?[\[-]({'|'.join(MODES)})[\]-]")


def place_of(nodeid: str) -> int:
    """Return when a test runs: those of a lower number first."""
    found = (place for place, folder in enumerate(ORDER) if nodeid.startswith(f"tests/{folder}/"))
    return next(found, len(ORDER))


class BySetUp(LoadScopeScheduling):
    """Gives each process all tests of a file at once, or all attacks in one mode."""

    def _split_scope(self, nodeid: str) -> str:
        mode = _MODE.match(nodeid)
        return f"attacks {mode[1]}" if mode else nodeid.partition("::")[0]
