"""Waits for conditions, never for time; and finds ports that are free. Knows no program."""

from __future__ import annotations

import atexit
import random
import socket
import time
from collections.abc import Callable, Mapping

from app.core.errors import ClusterError, ClusterUnavailable

POLL_SECONDS = 0.05
PORTS = range(20_000, 32_000)
"""Below those the kernel hands out to connections, so that none of them takes ours first."""

_KEPT: list[socket.socket] = []
"""Bound to the ports we gave, so that no program side by side with us chooses one of them."""


@atexit.register
def _let_go() -> None:
    for kept in _KEPT:
        kept.close()


Condition = Callable[[], bool]


def until(
    conditions: Mapping[str, Condition],
    *,
    seconds: float,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Return once every condition has been true.

    `check` is called in between and may raise. ClusterUnavailable counts as "not yet". Raises
    ClusterError, naming what did not come true, after so many seconds.
    """
    missing = dict(conditions)
    reasons: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    while True:
        for name, condition in list(missing.items()):
            try:
                if condition():
                    del missing[name]
            except ClusterUnavailable as error:
                reasons[name] = str(error)
        if not missing:
            return
        check()
        if time.monotonic() > deadline:
            told = "; ".join(
                f"{name} ({reasons[name]})" if name in reasons else name for name in missing
            )
            raise ClusterError(f"Not ready after {seconds:.0f} s: {told}.")
        time.sleep(POLL_SECONDS)


def free_ports(count: int) -> list[int]:
    """Return so many different ports of the loopback that nobody listens on or was given.

    They stay ours while this program runs: a socket is bound to each that never listens. Whoever
    listens there itself has to set SO_REUSEADDR, as servers do.
    """
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(found) == count:
            return found
        kept = socket.socket()
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            continue
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _KEPT.append(kept)
        found.append(port)
    raise ClusterError(f"No {count} ports are free between {PORTS.start} and {PORTS.stop}.")
