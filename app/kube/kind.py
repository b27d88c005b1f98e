"""What there is to know of one kind of object that is watched, and how patiently it is. Values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from app import wire
from app.core.events import ClusterEvent, Source
from app.core.model import Millis


class Named(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> wire.Metadata: ...


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """What there is to know of one kind of object.

    `key` tells its objects apart as the core does. `read` returns None for an object that does
    not concern us, and raises InvalidInput for one it cannot understand.
    """

    source: Source
    path: str
    page: msgspec.json.Decoder[wire.Page[T]]
    change: msgspec.json.Decoder[wire.Change[T]]
    item: msgspec.json.Decoder[T]
    key: Callable[[wire.Metadata], str]
    read: Callable[[T, Millis], ClusterEvent | None]
    gone: Callable[[str, Millis], ClusterEvent]
    optional: bool = False
    """A server may lack this kind: there is none of it then."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, but for `page`: the number of objects in one page of a list."""

    page: int = 500
    page_timeout: float = 15.0
    follow: tuple[float, float] = (20.0, 28.0)
    """How long a watch is asked to last; at random in between.

    A server says something when a watch begins, two seconds before it ends, and once a minute:
    the shorter a watch, the sooner silence tells that a connection is dead. To open one costs the
    server about as much as to read one object; a dozen kinds come to half a request a second
    for each replica. And the versions from which quiet kinds are followed again never grow old.
    """
    silence: float = 32.0
    """Without a word on a watch: the longest that it may last, and as much as a slow server takes
    to end it."""
    catch_up: float = 4.0
    """A watch that does not get to a given version in so long lists again."""
    glance: float = 3.0
    """How long a watch lasts that is to tell, by the bookmark two seconds before its end, how far
    it is. Whole seconds; one that lasts two has no such bookmark, for its time is past by then."""
    outage: float = 10.0
    """Without a connection."""
    backoff: tuple[float, float] = (0.1, 3.0)
    absent: float = 20.0
    """Before a kind that the server lacks is looked for again. Shorter than `silence`."""
    longest_wait: float = 30.0
    """The most that a Retry-After of the server is honoured."""


NORMAL = Timing()
