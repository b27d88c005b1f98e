"""Turns the first signal into KeyboardInterrupt, so that a long step can clean up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Turn the first terminating signal into KeyboardInterrupt, and ignore later signals.

    A second signal therefore does not interrupt the clean-up. No effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        for sign in SIGNALS:
            signal.signal(sign, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {sign: signal.getsignal(sign) for sign in SIGNALS}
    try:
        for sign in SIGNALS:
            signal.signal(sign, interrupt)
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler if handler is not None else signal.SIG_DFL)
