"""Lets a signal end a long step in an orderly way: as KeyboardInterrupt, and only once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def orderly() -> Iterator[None]:
    """Turn the first signal that would end us into KeyboardInterrupt, and ignore those after it.

    So what cleans up after the first is not cut short by a second one. Only the main thread can
    do so; in others nothing changes.
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
