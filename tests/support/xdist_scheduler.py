"""Distributes tests over processes.

Tests that share a fixture stay in one process, one after the other: a cluster takes ten to twenty
seconds to start, and would otherwise be started in every process. Tests without a cluster come
first. The longest chains on clusters of their own follow, then tests that share the clusters of
the whole run. Small files come last, so that all processes end at about the same time.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

from tests.e2e.attacks.attack_cluster import MODES

ORDER = (
    "unit/",
    "meta/",
    "simulation/",
    "property/",
    "browser/",
    "contract/test_enforcement.py",
    "faults/",
    "e2e/attacks/",
    "e2e/",
    "integration/",
    "contract/",
)
"""Folders and files in the order in which they run. The first entry that matches counts."""

_MODE = re.compile(rf"tests/e2e/attacks/.*?[\[-]({'|'.join(MODES)})[\]-]")


def place_of(nodeid: str) -> int:
    """Return the position of a test: lower numbers run first."""
    found = (place for place, part in enumerate(ORDER) if nodeid.startswith(f"tests/{part}"))
    return next(found, len(ORDER))


class BySetUp(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process all tests of a file at once, or all attacks in one mode."""

    def _split_scope(self, nodeid: str) -> str:
        mode = _MODE.match(nodeid)
        return f"attacks {mode[1]}" if mode else nodeid.partition("::")[0]
