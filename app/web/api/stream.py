"""Route /stream: server-sent events with the state for the dashboard.

Callers with equal rights share one `DashboardState`. It is computed at most once a second, and sent
if it changed. A slow client skips to the newest state, so memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from app.core.admission.submitters import limit_name
from app.core.errors import ClusterError
from app.ports.auth import Identity
from app.web.api import problems
from app.web.api.dashboard_state import (
    DashboardFacts,
    collect_facts,
    state_for_rights,
)
from app.web.api.limited_stream import LimitedStream
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
MOST_STREAMS = 200
MOST_PER_CALLER = 10
COST = 20
"""The event loop spends at most 1/`COST` of its time on computing states."""


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Intervals in seconds.

    `state_interval`: between two states. `keep_alive_interval`: between keep-alive comments.
    `rights_interval`: until the caller's rights are checked again.
    """

    state_interval: float = 1.0
    keep_alive_interval: float = 15.0
    rights_interval: float = 60.0


class StateCache:
    """Cache of the newest state for each set of rights in use, with the number of its version.

    `collect` returns the complete data. `restrict` limits the data to a set of rights.
    """

    def __init__(
        self,
        collect: Callable[[], DashboardFacts],
        restrict: Callable[[DashboardFacts, VisibleState], DashboardState],
        clock: Callable[[], float],
        interval: float,
    ) -> None:
        self._collect = collect
        self._restrict = restrict
        self._clock = clock
        self._interval = interval
        self._facts: DashboardFacts | None = None
        self._next_computation = 0.0
        self._computation = 0
        self._states: OrderedDict[VisibleState, _Shown] = OrderedDict()

    def newest_state(self, rights: VisibleState) -> _Shown:
        """Return the state for these rights. Compute it again if it is too old."""
        began = self._clock()
        if self._facts is None or began >= self._next_computation:
            self._facts = self._collect()
            oldest = self._computation - 1  # no stream asked for an older state since then
            unused = [each for each, s in self._states.items() if s.computation < oldest]
            for each in unused:
                del self._states[each]
            self._computation += 1
            self._next_computation = began + max(self._interval, COST * (self._clock() - began))
        shown = self._states.pop(rights, None)
        if shown is None or shown.computation != self._computation:
            cutting = self._clock()
            fresh = self._restrict(self._facts, rights)
            self._next_computation += (COST - 1) * (
                self._clock() - cutting
            )  # each set of rights adds work
            same = shown is not None and shown.state == fresh.model_copy(
                update={"at": shown.state.at}
            )
            if shown is None or not same:
                shown = _Shown(
                    self._computation, self._computation, fresh, encode_event("state", fresh)
                )
            else:
                shown = _Shown(shown.version, self._computation, shown.state, shown.text)
        self._states[rights] = shown
        if len(self._states) > MOST_STREAMS:
            self._states.popitem(last=False)
        return shown


@dataclass(frozen=True, slots=True)
class _Shown:
    """A cached state. `version`: its version. `computation`: the last computation with an equal
    result.
    """

    version: int
    computation: int
    state: DashboardState
    text: bytes


class ConnectionLimit:
    """Limits the number of open streams, in total and per caller."""

    def __init__(
        self, max_streams: int = MOST_STREAMS, max_per_caller: int = MOST_PER_CALLER
    ) -> None:
        self._max_streams = max_streams
        self._max_per_caller = max_per_caller
        self._streams_by_caller: Counter[str] = Counter()

    def add_stream(self, name: str) -> None:
        """Count a stream of a caller. Raises Refused (429, 503) at the limit."""
        if self._streams_by_caller[name] >= self._max_per_caller:
            raise Refused(
                429, f"{name} has {self._max_per_caller} open streams already; close some pages."
            )
        if self._streams_by_caller.total() >= self._max_streams:
            raise Refused(503, "Too many streams are open; try again in a moment.")
        self._streams_by_caller[name] += 1

    @asynccontextmanager
    async def open_stream(self, name: str) -> AsyncIterator[None]:
        """Count a stream of a caller until the end. Raises Refused (429, 503) at the limit."""
        self.add_stream(name)
        try:
            yield
        finally:
            self.remove_stream(name)

    def remove_stream(self, name: str) -> None:
        """Stop counting a stream of a caller."""
        self._streams_by_caller[name] -= 1
        if not self._streams_by_caller[name]:
            del self._streams_by_caller[name]


def encode_event(name: str, data: BaseModel) -> bytes:
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
    caller = Depends(access.authenticate_request)
    rules = WaitReasonCache(clock)
    board = StateCache(
        lambda: collect_facts(context, rules),
        lambda known, rights: state_for_rights(known, context, rights),
        clock,
        times.state_interval,
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
            known = await access.authenticate_request(request)
            await access.require(known, "get", "stream")
            return known, await visible.renew_rights(known)

        context.require_synced_state()
        await access.require(identity, "get", "stream")
        first = (identity, await visible.rights_of(identity))
        content = _stream_events(board, first, read_state, clock, stays, times)
        turn = listeners.open_stream(limit_name(identity.name))
        return LimitedStream(content, turn, MEDIA_TYPE)


async def _stream_events(
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
        if clock() >= trusted + rhythm.rights_interval:
            try:
                identity, rights = await read_state()
            except (Refused, ClusterError) as error:
                yield encode_event("end", _problem(error))
                return
            trusted = clock()
        if rights != greeted:
            yield encode_event("hello", rights.hello_event(identity))
            greeted, sent = rights, 0
        shown = cache.newest_state(rights)
        if shown.version != sent:
            yield shown.text
            sent, told = shown.version, clock()
        elif clock() >= told + rhythm.keep_alive_interval:
            yield b": nothing changed\n\n"
            told = clock()
        await asyncio.sleep(rhythm.state_interval)


def _problem(error: Refused | ClusterError) -> problems.Problem:
    if isinstance(error, Refused):
        return problems.problem(error.status, error.detail)
    return problems.problem(503, problems.NO_CLUSTER)
