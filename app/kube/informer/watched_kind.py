"""Description of one watched kind of object, and the time-outs of its watch. Values only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from app.core.events import ClusterEvent, WatchedSource
from app.core.model import Millis
from app.k8s_types import objects
from app.k8s_types.deep_json import Decoder


class NamedObject(Protocol):
    """Any object of the API."""

    @property
    def metadata(self) -> objects.Metadata: ...


T = TypeVar("T", bound=NamedObject)


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[T]):
    """One watched kind of object.

    `key` identifies an object in the same way as the core. `read` returns None for an irrelevant
    object, and raises InvalidInput for an invalid one.
    """

    source: WatchedSource
    path: str
    page: Decoder[objects.ListPage[T]]
    change: Decoder[objects.WatchEvent[T]]
    item: Decoder[T]
    key: Callable[[objects.Metadata], str]
    read: Callable[[T, Millis], ClusterEvent | None]
    deletion_event: Callable[[str, Millis], ClusterEvent]
    optional: bool = False
    """True if a server may lack this kind. It then counts as an empty list."""
    other_paths: tuple[str, ...] = ()
    """Paths of the same kind in other API versions, tried in this order if `path` is missing."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs in seconds. `page` is the number of objects in one page of a list."""

    page: int = 500
    page_timeout: float = 15.0
    follow: tuple[float, float] = (20.0, 28.0)
    """Requested duration of a watch, at random between the two.

    A server sends data when a watch starts, two seconds before it ends, and once a minute. The
    shorter a watch, the sooner silence reveals a dead connection. Opening a watch costs the server
    about as much as reading one object. A dozen kinds amount to half a request per second and
    replica. Short watches also keep the resourceVersion of quiet kinds recent enough to resume.
    """
    silence: float = 32.0
    """Longest silence on a watch: its longest duration plus the delay of a slow server."""
    catch_up: float = 4.0
    """A watch that does not reach a given version within this time lists again."""
    bookmark_watch: float = 3.0
    """Duration of a watch that waits only for the bookmark two seconds before its end. Whole
    seconds. A watch of two seconds has no such bookmark.
    """
    outage: float = 10.0
    """Longest time without a connection."""
    backoff: tuple[float, float] = (0.1, 3.0)
    absent_pause: float = 20.0
    """Pause before the server is asked again for a missing kind. Shorter than `silence`."""
    longest_wait: float = 30.0
    """Upper limit for a Retry-After of the server."""


NORMAL = Timing()
