"""Turns of callers at slow answers: the events of a pod, and exports of the audit chain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.web.api.refused import Refused

RETRY_HEADERS = {"Retry-After": "2"}

AT_ONCE = 2
"""Most turns at the same time, each of another caller."""


@dataclass(slots=True)
class _Caller:
    answers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Turns:
    """Turns of one kind of answer: one for each caller, two in all.

    The second turn serves others while a slow answer goes on.
    """

    def __init__(self, refusal: str) -> None:
        """`refusal`: the sentence for a further request while one of the same caller waits."""
        self._refusal = refusal
        self._all = asyncio.Semaphore(AT_ONCE)
        self._callers: dict[str, _Caller] = {}

    @asynccontextmanager
    async def take(self, who: str) -> AsyncIterator[None]:
        """Wait for a turn. Raises Refused (429) if a request of the caller waits already.

        The page may open one view after another, and then shows the answers of both.
        """
        caller = self._callers.setdefault(who, _Caller())
        if caller.answers == 2:
            raise Refused(429, self._refusal, RETRY_HEADERS)
        caller.answers += 1
        try:
            async with caller.lock, self._all:
                yield
        finally:
            caller.answers -= 1
            if not caller.answers:
                del self._callers[who]
