"""Route /stream: server-sent events with the state for the dashboard.

Callers with equal rights share one `DashboardState`. It is computed at most once a second, and sent
if it changed. A slow client skips to the newest state, so memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from app.core.admission.submitters import limit_name
from app.core.errors import ClusterError
from app.ports.auth import Identity
from app.web.api import problems
from app.web.api.dashboard_state import (
    Facts,
    facts,
    state,
)
from app.web.api.openapi_models import stream_of
from app.web.api.refused import Refused
from app.web.api.route_context import RouteContext
from app.web.api.stream_schemas import DashboardState, Hello
from app.web.api.visible_state import VisibleState, VisibleStates
from app.web.api.wait_reason_cache import WaitReasonCache

MEDIA_TYPE = "text/event-stream"
EVENTS: dict[str, type[BaseModel]] = {
    "hello": Hello,
    "state": DashboardState,
    "end": problems.Problem,
}
"""Events by name, with the model of their data."""
MOST = 200
MOST_OF_ONE = 10
COST = 20
"""The event loop spends at most 1/`COST` of its time on computing states."""


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Intervals in seconds.

    `beat`: between two states. `quiet`: between keep-alive comments. `trust`: until the caller's
    rights are checked again. `write_timeout`: until a client that does not read is disconnected.
    """

    beat: float = 1.0
    quiet: float = 15.0
    trust: float = 60.0
    write_timeout: float = 30.0


class StateCache:
    """Cache of the newest state for each set of rights in use, with the number of its version.

    `make` returns the complete data. `cut` limits the data to a set of rights.
    """

    def __init__(
        self,
        make: Callable[[], Facts],
        cut: Callable[[Facts, VisibleState], DashboardState],
        clock: Callable[[], float],
        beat: float,
    ) -> None:
        self._make = make
        self._cut = cut
        self._clock = clock
        self._beat = beat
        self._facts: Facts | None = None
        self._due = 0.0
        self._made = 0
        self._shown: OrderedDict[VisibleState, _Shown] = OrderedDict()

    def newest(self, rights: VisibleState) -> _Shown:
        """Return the state for these rights. Compute it again if it is too old."""
        began = self._clock()
        if self._facts is None or began >= self._due:
            self._facts = self._make()
            self._made += 1
            self._due = began + max(self._beat, COST * (self._clock() - began))
        shown = self._shown.pop(rights, None)
        if shown is None or shown.made != self._made:
            cutting = self._clock()
            fresh = self._cut(self._facts, rights)
            self._due += (COST - 1) * (self._clock() - cutting)  # each set of rights adds work
            same = shown is not None and shown.state == fresh.model_copy(
                update={"at": shown.state.at}
            )
            if shown is None or not same:
                shown = _Shown(self._made, self._made, fresh, event("state", fresh))
            else:
                shown = _Shown(shown.number, self._made, shown.state, shown.text)
        self._shown[rights] = shown
        if len(self._shown) > MOST:
            self._shown.popitem(last=False)
        return shown


@dataclass(frozen=True, slots=True)
class _Shown:
    """A cached state. `number`: its version. `made`: the last computation with an equal result."""

    number: int
    made: int
    state: DashboardState
    text: bytes


class ConnectionLimit:
    """Limits the number of open streams, in total and per caller."""

    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()

    def enter(self, name: str) -> None:
        """Count a stream of a caller. Raises Refused (429, 503) at the limit."""
        if self._of[name] >= self._most_of_one:
            raise Refused(
                429, f"{name} has {self._most_of_one} open streams already; close some pages."
            )
        if self._of.total() >= self._most:
            raise Refused(503, "Too many streams are open; try again in a moment.")
        self._of[name] += 1

    def leave(self, name: str) -> None:
        """Stop counting a stream of a caller."""
        self._of[name] -= 1
        if not self._of[name]:
            del self._of[name]


class EventStreamResponse(StreamingResponse):
    """A stream that counts in `ConnectionLimit`, and ends if the client does not read."""

    media_type = MEDIA_TYPE

    def __init__(
        self, content: AsyncIterator[bytes], room: ConnectionLimit, name: str, write_timeout: float
    ) -> None:
        # The headers ask proxies not to cache or buffer.
        super().__init__(content, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._room = room
        self._name = name
        self._write_timeout = write_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._room.enter(self._name)
        except Refused as error:
            await problems.answer(error.status, error.detail)(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._room.leave(self._name)

    async def stream_response(self, send: Send) -> None:
        slow = False

        async def patient(message: Message) -> None:
            nonlocal slow
            try:
                async with asyncio.timeout(self._write_timeout):
                    await send(message)
            except TimeoutError:
                slow = True
                raise

        try:
            await super().stream_response(patient)
        except TimeoutError:
            if not slow:
                raise


def event(name: str, data: BaseModel) -> bytes:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {data.model_dump_json(by_alias=True)}\n\n".encode()


def add_stream_routes(
    routes: APIRouter,
    context: RouteContext,
    visible: VisibleStates,
    clock: Callable[[], float],
    stays: Callable[[], bool] = lambda: True,
    rhythm: StreamTiming | None = None,
    room: ConnectionLimit | None = None,
) -> None:
    """Add the route /stream. `clock` returns monotonic seconds; `stays`: False ends streams."""
    times, listeners = rhythm or StreamTiming(), room or ConnectionLimit()
    access = context.access
    caller = Depends(access.caller)
    rules = WaitReasonCache(clock)
    board = StateCache(
        lambda: facts(context, rules),
        lambda known, rights: state(known, context, rights),
        clock,
        times.beat,
    )

    @routes.get(
        "/stream",
        summary="The state of everything, as it changes",
        response_class=StreamingResponse,
        responses={
            200: {
                "content": {MEDIA_TYPE: {"schema": stream_of(EVENTS)}},
                "description": "Server-sent events.",
            }
        },
    )
    async def stream(request: Request, identity: Identity = caller) -> StreamingResponse:
        async def read_state() -> tuple[Identity, VisibleState]:
            known = await access.caller(request)
            await access.need(known, "get", "stream")
            return known, await visible.renewed(known)

        context.need_synced_state()
        await access.need(identity, "get", "stream")
        first = (identity, await visible.of(identity))
        content = _listen(board, first, read_state, clock, stays, times)
        return EventStreamResponse(
            content, listeners, limit_name(identity.name), times.write_timeout
        )


async def _listen(
    cache: StateCache,
    first: tuple[Identity, VisibleState],
    read_state: Callable[[], Awaitable[tuple[Identity, VisibleState]]],
    clock: Callable[[], float],
    stays: Callable[[], bool],
    rhythm: StreamTiming,
) -> AsyncIterator[bytes]:
    """Yield events until the caller loses the right, or `stays` returns False."""
    identity, rights = first
    trusted = told = clock()
    greeted: VisibleState | None = None
    sent = 0
    while stays():
        if clock() >= trusted + rhythm.trust:
            try:
                identity, rights = await read_state()
            except (Refused, ClusterError) as error:
                yield event("end", _problem(error))
                return
            trusted = clock()
        if rights != greeted:
            yield event("hello", rights.hello(identity))
            greeted, sent = rights, 0
        shown = cache.newest(rights)
        if shown.number != sent:
            yield shown.text
            sent, told = shown.number, clock()
        elif clock() >= told + rhythm.quiet:
            yield b": nothing changed\n\n"
            told = clock()
        await asyncio.sleep(rhythm.beat)


def _problem(error: Refused | ClusterError) -> problems.Problem:
    if isinstance(error, Refused):
        return problems.problem(error.status, error.detail)
    return problems.problem(503, problems.NO_CLUSTER)
