"""How many cases the property tests try: a part in each run, all of them with NIGHTLY=1.

Hypothesis draws other cases in each run, so that ordinary runs reach the same depth over time.
"""

from __future__ import annotations

import os

NIGHTLY = os.environ.get("NIGHTLY", "") not in ("", "0")


def cases(usual: int, nightly: int) -> int:
    """Return the number of cases of this run."""
    return nightly if NIGHTLY else usual
