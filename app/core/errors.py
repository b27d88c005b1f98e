"""Every error Fairgate raises on purpose.

FairgateError                the message is one sentence for the reader: what, why, what to do
├── InvalidInput             something the caller wrote is wrong                   exit 2
│   ├── InvalidQuantity      a resource amount that Kubernetes would not accept
│   └── InvalidSettings      flags or FAIRGATE_* variables, all mistakes in one message
├── ToolMissing              the machine lacks a program we need                   exit 3
├── ClusterError             the API server                                        exit 3
│   ├── ClusterUnavailable   no answer, or a 5xx: what happened is unknown
│   ├── ClusterRefused       it answered no; carries the HTTP status
│   │   └── WriteRefused     to a write of a resource; the message is for whoever wanted it
│   └── PodUnyielding        one pod can be read, but no change of it gets through
├── ForecastError            looking ahead                                         exit 4
│   ├── ForecastFailed       it took too long or too much memory, or broke
│   └── ForecastBusy         too many wait for one already; says when to try again
└── StoreError               Redis                                                 exit 3
    ├── StoreUnavailable     no answer: what happened is unknown
    │   └── StoreFull        it has no memory left: nothing was written
    ├── StoreEmptied         it lost its contents and must be rebuilt
    ├── StoreForeign         another layout version, or unsafe server settings
    └── EpochStale           a newer leader has written: this one must stop
"""

from __future__ import annotations


class FairgateError(Exception):
    """Base of the tree."""


class InvalidInput(FairgateError):
    """Something the caller wrote is wrong."""


class InvalidQuantity(InvalidInput):
    """A resource amount that Kubernetes would not accept."""


class InvalidSettings(InvalidInput):
    """Every mistake in the settings, one per line."""


class ToolMissing(FairgateError):
    """The machine lacks a program we need."""


class ClusterError(FairgateError):
    """The API server could not be used."""


class ClusterUnavailable(ClusterError):
    """No usable answer came; the request may or may not have taken effect."""


class ClusterRefused(ClusterError):
    """The API server answered no."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class WriteRefused(ClusterRefused):
    """The API server judged a write of a resource, and answered no; the message is its own."""


class PodUnyielding(ClusterError):
    """One pod can be read, but no change of it gets through; a change sent before still may."""


class ForecastError(FairgateError):
    """Nobody could look ahead."""


class ForecastFailed(ForecastError):
    """A forecast took too long or too much memory, or broke; the next one starts afresh."""


class ForecastBusy(ForecastError):
    """Too many callers wait for a forecast already."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreError(FairgateError):
    """Redis could not be used."""


class StoreUnavailable(StoreError):
    """No answer came; the write may or may not have taken effect."""


class StoreFull(StoreUnavailable):
    """Redis has no memory left, and wrote nothing."""


class StoreEmptied(StoreError):
    """Redis lost its contents and must be rebuilt from the API server."""


class StoreForeign(StoreError):
    """Redis holds another layout version, or is set up in a way that loses data."""


class EpochStale(StoreError):
    """A leader with a higher epoch has written; this one must stop."""
