"""The state as it changes: server-sent events for the page at /.

Everyone with the same sight shares one State, made at most once a second and sent when it
changed. A slow reader gets the newest one, so nothing piles up here.
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

from app.core.errors import ClusterError
from app.core.model import TenantName
from app.ports import Identity
from app.web import problems
from app.web.access import Bearer
from app.web.api.ground import Ground
from app.web.api.rules import Rules
from app.web.api.shown import State
from app.web.api.state import Facts, Sight, facts, sight_of, state
from app.web.problems import Refused

MEDIA_TYPE = "text/event-stream"
MOST = 200
MOST_OF_ONE = 10
COST = 20
"""The engine's thread spends at most one part in so many on making states."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds: between two states, between signs of life, until a caller's rights are asked again,
    and how long a reader may take in nothing."""

    beat: float = 1.0
    quiet: float = 15.0
    trust: float = 60.0
    patience: float = 30.0


class Board:
    """The newest state for every sight that is looked at, and a number that tells it from others.

    `make` returns all facts, `cut` what of them a sight may see.
    """

    def __init__(
        self,
        make: Callable[[], Facts],
        cut: Callable[[Facts, Sight], State],
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
        self._shown: OrderedDict[Sight, _Shown] = OrderedDict()

    def newest(self, sight: Sight) -> _Shown:
        """Return what to show; made anew if what there is has grown old."""
        began = self._clock()
        if self._facts is None or began >= self._due:
            self._facts = self._make()
            self._made += 1
            self._due = began + max(self._beat, COST * (self._clock() - began))
        shown = self._shown.pop(sight, None)
        if shown is None or shown.made != self._made:
            cutting = self._clock()
            fresh = self._cut(self._facts, sight)
            self._due += (COST - 1) * (self._clock() - cutting)  # as many sights, as much work
            same = shown is not None and shown.state == fresh.model_copy(
                update={"at": shown.state.at}
            )
            if shown is None or not same:
                shown = _Shown(self._made, self._made, fresh, event("state", fresh))
            else:
                shown = _Shown(shown.number, self._made, shown.state, shown.text)
        self._shown[sight] = shown
        if len(self._shown) > MOST:
            self._shown.popitem(last=False)
        return shown


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a sight was shown: `number` of the state, and when it was last found unchanged."""

    number: int
    made: int
    state: State
    text: bytes


class Room:
    """Counts who listens."""

    def __init__(self, most: int = MOST, most_of_one: int = MOST_OF_ONE) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._of: Counter[str] = Counter()

    def enter(self, name: str) -> None:
        """Take a place. Raises Refused (429, 503)."""
        if self._of[name] >= self._most_of_one:
            raise Refused(
                429, f"{name} listens {self._most_of_one} times already; close some of those pages."
            )
        if self._of.total() >= self._most:
            raise Refused(503, "Too many pages listen already; try again in a moment.")
        self._of[name] += 1

    def leave(self, name: str) -> None:
        """Give a place back."""
        self._of[name] -= 1
        if not self._of[name]:
            del self._of[name]


class Events(StreamingResponse):
    """A stream that holds a place in the room, and gives up on a reader that takes nothing in."""

    media_type = MEDIA_TYPE

    def __init__(
        self, content: AsyncIterator[bytes], room: Room, name: str, patience: float
    ) -> None:
        # Proxies are asked not to gather it up.
        super().__init__(content, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self._room = room
        self._name = name
        self._patience = patience

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
                async with asyncio.timeout(self._patience):
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


def stream_routes(
    ground: Ground,
    clock: Callable[[], float],
    stays: Callable[[], bool] = lambda: True,
    rhythm: Rhythm | None = None,
    room: Room | None = None,
) -> APIRouter:
    """Return the route /stream. `clock` gives monotonic seconds, `stays` whether this goes on."""
    routes = APIRouter()
    times, listeners = rhythm or Rhythm(), room or Room()
    access = ground.access
    caller = Depends(access.caller)
    rules = Rules(clock)
    board = Board(
        lambda: facts(ground, rules),
        lambda known, sight: state(known, ground, sight),
        clock,
        times.beat,
    )

    def names() -> list[TenantName]:
        tenants = ground.outlook.view().tenants
        # Those that somebody made come first: their admins are asked about by name.
        return sorted(tenants, key=lambda name: (not tenants[name].exists, name))

    @routes.get(
        "/stream",
        summary="The state of everything, as it changes",
        response_class=StreamingResponse,
        responses={200: {"content": {MEDIA_TYPE: {}}, "description": "Server-sent events."}},
    )
    async def stream(
        request: Request, bearer: Bearer, identity: Identity = caller
    ) -> StreamingResponse:
        async def look() -> tuple[Identity, Sight]:
            known = await access.caller(request, bearer)
            return known, await sight_of(access, known, names())

        ground.need_sight()
        first = (identity, await sight_of(access, identity, names()))
        content = _listen(board, first, look, clock, stays, times)
        return Events(content, listeners, identity.name, times.patience)

    return routes


async def _listen(
    board: Board,
    first: tuple[Identity, Sight],
    look: Callable[[], Awaitable[tuple[Identity, Sight]]],
    clock: Callable[[], float],
    stays: Callable[[], bool],
    rhythm: Rhythm,
) -> AsyncIterator[bytes]:
    """Yield events until the caller may listen no more, or this process is about to end."""
    identity, sight = first
    trusted = told = clock()
    greeted: Sight | None = None
    sent = 0
    while stays():
        if clock() >= trusted + rhythm.trust:
            try:
                identity, sight = await look()
            except (Refused, ClusterError) as error:
                yield event("end", _problem(error))
                return
            trusted = clock()
        if sight != greeted:
            yield event("hello", sight.hello(identity))
            greeted, sent = sight, 0
        shown = board.newest(sight)
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
