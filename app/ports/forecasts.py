"""Protocols and values of wait estimates and what-if simulations for the REST API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

from app.core.explain.reasons import WaitExplanation
from app.core.explain.views import HeldView
from app.core.model import Millis, Pod, PoolName, TenantName, Uid, UserName


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated wait of a pod in seconds from `at`: median and 90th percentile."""

    p50: int
    p90: int
    at: Millis


class Forecasts(Protocol):
    """Wait estimates of waiting pods. Answers at once, from the last forecast."""

    def estimate(self, uid: Uid) -> Estimate | None:
        """Return the estimated wait, or None if it would be a guess."""

    def missing_estimate_reason(self, uid: Uid) -> str:
        """Return why there is no estimate, as a sentence."""

    def estimate_from_wait(self, seconds: float, at: Millis) -> Estimate | None:
        """Return the estimate for a simulated wait from `at`; None if it would be a guess."""


@dataclass(frozen=True, slots=True)
class WeightChanges:
    """Weights to try in place of the current ones: per tenant, and per user of a tenant."""

    weights: Mapping[TenantName, Fraction] = field(default_factory=dict)
    users: Mapping[TenantName, Mapping[UserName, Fraction]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TenantForecast:
    """Result of a simulation for one tenant, its child tenants included.

    `share` is the mean dominant share. `pending` counts the pods that wait now, `started` the
    released ones among them. `mean_wait` and `p90_wait` are their further waiting times in seconds.
    A pod that was not released counts with the whole simulated time.
    """

    weight: Fraction
    share: float
    pending: int
    started: int
    mean_wait: float
    p90_wait: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Simulations of the same backlog without and with changes: per tenant (`now`, `then`)."""

    pods: int
    seconds: float
    assumed: str
    tenants: Mapping[TenantName, tuple[TenantForecast, TenantForecast]]


class Simulations(Protocol):
    """Runs what-if simulations for a caller."""

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        """Simulate without and with changes. Raises InvalidInput, ForecastBusy, ForecastFailed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Pods that a caller wants to create in a namespace: count, document and specs of new claims.

    A spec is that of a ResourceClaim that does not exist, by the entry of the pod's claims.

    `kind` and `name`: the object that will create them; kind `Pod` for pods without a controller.
    `in_order`: a JobSet that starts its replicated jobs one after another.
    """

    namespace: str
    kind: str
    name: str
    pods: Sequence[tuple[int, Mapping[str, Any], Mapping[str, Any]]]
    in_order: bool = False


class ProposalReader(Protocol):
    """Converts a proposal to pods."""

    def read(self, proposal: Proposal, user: UserName, at: Millis) -> tuple[Pod, ...]:
        """Return the held pods of a proposal. Empty: Fairgate would hold none of them.

        Raises InvalidInput for documents that are not pods.
        """


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a simulation with proposed pods in addition to the present ones.

    `released`: the pool of each pod that starts at once. `held` and `why`: the wait of the first
    other pod; None if there is none. `wait`: seconds until the last pod starts; None: not within
    the simulated time, or `failure` says why the simulation was not completed. `at`: the time of
    the cluster state. `assumed`: the source of the run times.
    """

    at: Millis
    released: Mapping[Uid, PoolName]
    held: HeldView | None
    why: WaitExplanation | None
    wait: float | None
    failure: str | None
    assumed: str


class Trials(Protocol):
    """Simulates proposed pods."""

    async def simulate_pods(self, user: UserName, pods: Sequence[Pod]) -> Trial:
        """Simulate the pods of a user. Raises ForecastBusy, ForecastFailed."""
