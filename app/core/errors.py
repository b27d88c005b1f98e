"""Tree of the errors that Fairgate raises on purpose.

FairgateError                the message is one sentence for the reader: what, why, what to do
├── InvalidInput             the input of the caller is wrong                      exit 2
│   ├── InvalidQuantity      a resource amount that Kubernetes would not accept
│   └── InvalidSettings      flags or FAIRGATE_* variables, all mistakes in one message
├── ToolMissing              the machine lacks a required program                  exit 3
├── ClusterError             the API server                                        exit 3
│   ├── ClusterUnavailable   no answer, or a 5xx: the result is unknown
│   │   └── WriteUnanswered   the same for a write: read the object
│   ├── ClusterRefused       it refused the request; has the HTTP status
│   │   └── WriteRefused     it refused a write of a resource; the message is for the requester
│   └── PodUnyielding        one pod can be read, but patches of the pod fail
├── ForecastError            forecasts                                             exit 4
│   ├── ForecastFailed       it took too much memory, or crashed
│   │   └── ForecastTimeout  it took too long
│   └── ForecastBusy         too many callers wait already; has the time of the next try
└── StoreError               Redis                                                 exit 3
    ├── StoreUnavailable     no answer: the result is unknown
    │   └── StoreFull        it has no memory left and wrote no data
    ├── StoreEmptied         it lost its contents and must be rebuilt
    ├── StoreForeign         another layout version, or unsafe server settings
    └── EpochStale           a newer leader has written: this one must stop
"""

from __future__ import annotations


class FairgateError(Exception):
    """Base of the tree."""


class InvalidInput(FairgateError):
    """The input of the caller is wrong."""


class InvalidQuantity(InvalidInput):
    """A resource amount that Kubernetes would not accept."""


class InvalidSettings(InvalidInput):
    """Every mistake in the settings, one per line."""


class ToolMissing(FairgateError):
    """The machine lacks a required program."""


class ClusterError(FairgateError):
    """The API server did not work as needed."""


class ClusterUnavailable(ClusterError):
    """There was no usable answer. The request may or may not have taken effect."""


class WriteUnanswered(ClusterUnavailable):
    """There was no usable answer to a write. Read the object: it may be written."""


class ClusterRefused(ClusterError):
    """The API server refused the request."""

    def __init__(self, message: str, status: int, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class WriteRefused(ClusterRefused):
    """The API server refused a write of a resource. The message is the API server's."""


class PodUnyielding(ClusterError):
    """One pod can be read, but patches fail. A patch sent earlier may still succeed."""


class ForecastError(FairgateError):
    """There is no forecast."""


class ForecastFailed(ForecastError):
    """A forecast took too much memory, or crashed. The next one starts from scratch."""


class ForecastTimeout(ForecastFailed):
    """A forecast took too long and was stopped."""


class ForecastBusy(ForecastError):
    """Too many callers wait for a forecast already. `retry_after` is in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class StoreError(FairgateError):
    """Redis did not work as needed."""


class StoreUnavailable(StoreError):
    """There was no answer. The write may or may not have taken effect."""


class StoreFull(StoreUnavailable):
    """Redis has no memory left and wrote no data."""


class StoreEmptied(StoreError):
    """Redis lost its contents and must be rebuilt from the API server."""


class StoreForeign(StoreError):
    """Redis has another layout version, or settings that can lose data."""


class EpochStale(StoreError):
    """A leader with a higher epoch has written; this one must stop."""
