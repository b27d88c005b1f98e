"""`fairgate replay`: plays the log of a real cluster under a policy, and prints the figures.

`VirtualCluster` with the engine, or a baseline, decides the order and advances time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Millis, Tenant, TenantName
from app.sim.metrics.window import Measures, measure
from app.sim.replay import replay_flags, replay_report
from app.sim.replay.machines import Fleet, one_pool, read_fleet
from app.sim.replay.runner import ReplayInput, ReplayResult, play
from app.sim.replay.trace_files import (
    DEVICE,
    TraceLog,
    make_elastic,
    read_log,
    read_tenants,
    shift_arrivals,
    tenants_of,
)
from app.sim.report import plot
from app.sim.scenario import value_parsers
from app.terminal.output import OutputOptions, as_text

FAIR = "fair"
POLICIES = (FAIR, "fifo", "backfill")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The command line. Either `gpus` or `nodes` is set. Times are not parsed yet.

    `settings` are the `field=value` pairs of `--set`. `start` and `span` are the window, in
    seconds of the log or as durations. `jitter` is a duration. `elastic` is the percentage of jobs
    that become elastic.
    """

    trace: Path
    gpus: int | None = None
    nodes: Path | None = None
    flat: bool = False
    tenant: str | None = None
    tenants: Path | None = None
    settings: tuple[str, ...] = ()
    start: str | None = None
    span: str | None = None
    jitter: str | None = None
    seed: int = 0
    policy: str = "fair"
    large_gang: int = 16
    output: OutputOptions = field(default_factory=OutputOptions)
    plot: Path | None = None
    elastic: int = 0


def run(options: ReplayOptions) -> None:
    """Replay a log and print the result. Raises InvalidInput."""
    _check(options)
    stage = prepare(options)
    if options.plot is not None:
        plot.check(options.plot, stage.start, stage.end)
    played = play(stage, options.policy)
    measures = _measured(stage, played, options.large_gang)
    rigid: Measures | None = None
    if options.elastic:
        before = prepare(replace(options, elastic=0))
        rigid = _measured(before, play(before, options.policy), options.large_gang)
    window = (stage.start, stage.end)
    if options.plot is not None:
        _draw(options, stage, played, options.plot)
    if options.output.is_data:
        print(as_text(options.output, replay_report.as_json(measures, played, window, rigid)))
    else:
        replay_report.show(measures, played, window, options.large_gang, options.policy)
        if rigid is not None:
            replay_report.show_elastic(measures, rigid, options.elastic)


def _draw(options: ReplayOptions, stage: ReplayInput, played: ReplayResult, path: Path) -> None:
    """Draw the run. The fair order is drawn next to first come, first served, if that can run."""
    runs = {options.policy: played}
    if options.policy == FAIR and options.gpus is not None:
        runs = {"fifo": play(stage, "fifo"), FAIR: played}
    waits = {name: _measured(stage, run, options.large_gang).users for name, run in runs.items()}
    plot.compare(
        {name: run.timeline for name, run in runs.items()},
        stage.capacity,
        DEVICE,
        stage.start,
        stage.end,
        path,
        f"{options.trace.name}, {stage.fleet.gpus} GPUs",
        unit=stage.log.scale,
        user_waits={name: [each.mean for each in users.values()] for name, users in waits.items()},
    )


def _measured(stage: ReplayInput, played: ReplayResult, large_gang: int) -> Measures:
    return measure(
        played.timeline,
        stage.capacity,
        stage.start,
        stage.end,
        weights=stage.weights,
        device=DEVICE,
        large_gang=large_gang,
        unit=stage.log.scale,
    )


def prepare(options: ReplayOptions) -> ReplayInput:
    """Read the files that the options name. Raises InvalidInput."""
    fleet = _fleet(options)
    policy = replay_flags.policy_with(options.settings)
    log = read_log(options.trace, flat=options.flat, tenant=options.tenant, models=fleet.models)
    if options.jitter is not None:
        by = replay_flags.option("--jitter", options.jitter, value_parsers.duration)
        log = TraceLog(shift_arrivals(log.works, by, options.seed), log.scale)
    if options.elastic:
        log = make_elastic(log, options.elastic, options.seed)
    tenants: Mapping[TenantName, Tenant] = tenants_of(log.works)
    if options.tenants is not None:
        pools = [pool.name for pool in fleet.pools]
        tenants = read_tenants(options.tenants, tenants, pools, log.scale)
    start, end = _window(options, log)
    return ReplayInput(fleet, log, tenants, policy, start, end)


def _check(options: ReplayOptions) -> None:
    """Raise InvalidInput if options are invalid or contradict each other."""
    if options.policy not in POLICIES:
        raise InvalidInput(f"--policy {options.policy} is not valid; use {', '.join(POLICIES)}.")
    if (options.gpus is None) == (options.nodes is None):
        raise InvalidInput("Say how large the cluster is: either --gpus N or --nodes FILE.csv.")
    if options.policy != FAIR and options.nodes is not None:
        raise InvalidInput(
            f"--policy {options.policy} knows no nodes; write --gpus N in place of --nodes."
        )
    if options.policy != FAIR and (options.settings or options.tenants):
        raise InvalidInput(
            f"--policy {options.policy} heeds neither --set nor --tenants; leave them out."
        )
    if not 0 <= options.elastic <= 100:
        raise InvalidInput(f"--elastic {options.elastic} is not valid; use 0 to 100 per cent.")
    if options.elastic and options.policy != FAIR:
        raise InvalidInput("--elastic needs the fair order; leave --policy out.")
    if options.large_gang < 1:
        raise InvalidInput(f"--large-gang {options.large_gang} is not valid; use 1 or more.")


def _fleet(options: ReplayOptions) -> Fleet:
    if options.nodes is not None:
        return read_fleet(options.nodes)
    return one_pool(options.gpus or 0)


def _window(options: ReplayOptions, log: TraceLog) -> tuple[Millis, Millis]:
    first, last = log.works[0].at, log.works[-1].at
    start = first
    if options.start is not None:
        start = replay_flags.option("--from", options.start, replay_flags.seconds)
    if options.span is not None:
        return start, Millis(
            start + replay_flags.option("--for", options.span, replay_flags.seconds)
        )
    if start > last:
        raise InvalidInput(
            f"--from {options.start} is after the last job, at {last / 1000:.0f}; "
            "choose an earlier one, or say --for how long."
        )
    return start, last
