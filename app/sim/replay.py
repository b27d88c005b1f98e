"""`fairgate replay`: plays a log of a real cluster through an order, and tells how it went.

Order and time are the World's and the engine's, or a baseline's; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import InvalidInput
from app.core.model import Millis, Tenant, TenantName
from app.sim import flags, pack, plot, readers, verdict
from app.sim.fleet import Fleet, one_pool, read_fleet
from app.sim.measures import measure
from app.sim.stage import Stage, play
from app.sim.traces import DEVICE, Log, read_log, read_tenants, shifted, tenants_of

POLICIES = ("fair", "fifo", "backfill")
OUTPUTS = ("text", "json")


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. `gpus` or `nodes`, one of them; times as they were written.

    `settings` are the `field=value` pairs of `--set`, `start` and `span` the window (seconds of
    the log, or lengths of time), `jitter` a length of time.
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
    output: str = "text"
    pack: bool = False
    any_model: bool = False
    seeds: int = 10
    plot: Path | None = None


def run(options: Options) -> None:
    """Replay a log and print the result. Raises InvalidInput."""
    _check(options)
    if options.pack:
        pack.run(_pack_order(options), output=options.output)
        return
    stage = prepare(options)
    if options.plot is not None:
        plot.check(options.plot, stage.start, stage.end)
    played = play(stage, options.policy)
    measures = measure(
        played.timeline,
        stage.capacity,
        stage.start,
        stage.end,
        weights=stage.weights,
        device=DEVICE,
        large_gang=options.large_gang,
        unit=stage.log.scale,
    )
    window = (stage.start, stage.end)
    if options.plot is not None:
        title = f"{options.trace.name}, {stage.fleet.gpus} GPUs, {options.policy}"
        plot.plot(
            played.timeline,
            stage.capacity,
            DEVICE,
            *window,
            options.plot,
            title,
            unit=stage.log.scale,
        )
    if options.output == "json":
        print(verdict.as_json(measures, played, window))
    else:
        verdict.show(measures, played, window, options.large_gang, options.policy)


def prepare(options: Options) -> Stage:
    """Read the files that the options name. Raises InvalidInput."""
    fleet = _fleet(options)
    policy = flags.policy_with(options.settings)
    models = None if options.any_model else fleet.models
    log = read_log(options.trace, flat=options.flat, tenant=options.tenant, models=models)
    if options.jitter is not None:
        by = flags.option("--jitter", options.jitter, readers.duration)
        log = Log(shifted(log.works, by, options.seed), log.scale)
    tenants: Mapping[TenantName, Tenant] = tenants_of(log.works)
    if options.tenants is not None:
        pools = [pool.name for pool in fleet.pools]
        tenants = read_tenants(options.tenants, tenants, pools, log.scale)
    start, end = _window(options, log)
    return Stage(fleet, log, tenants, policy, start, end)


def _check(options: Options) -> None:
    """Refuse options that do not go together."""
    if options.policy not in POLICIES:
        raise InvalidInput(
            f"--policy {options.policy} is none of them; write {', '.join(POLICIES)}."
        )
    if options.output not in OUTPUTS:
        raise InvalidInput(f"--output {options.output} is neither text nor json; write one.")
    if (options.gpus is None) == (options.nodes is None):
        raise InvalidInput("Say how large the cluster is: either --gpus N or --nodes FILE.csv.")
    if options.any_model and options.nodes is None:
        raise InvalidInput(
            "--any-model is about the models of nodes, and --gpus N has none; leave it out."
        )
    if options.policy != "fair" and options.nodes is not None:
        raise InvalidInput(
            f"--policy {options.policy} knows no nodes; write --gpus N in place of --nodes."
        )
    if options.policy != "fair" and (options.settings or options.tenants):
        raise InvalidInput(
            f"--policy {options.policy} heeds neither --set nor --tenants; leave them out."
        )
    if options.large_gang < 1:
        raise InvalidInput(f"--large-gang {options.large_gang} does not do; write 1 or more.")


def _pack_order(options: Options) -> pack.Order:
    if options.nodes is None:
        raise InvalidInput("--pack needs real nodes; write --nodes FILE.csv in place of --gpus.")
    if options.policy != "fair":
        raise InvalidInput("--pack drives the engine; leave --policy out.")
    unheeded = {
        "--flat": options.flat,
        "--tenants": options.tenants,
        "--from": options.start,
        "--for": options.span,
        "--jitter": options.jitter,
        "--plot": options.plot,
    }
    for flag, given in unheeded.items():
        if given:
            raise InvalidInput(f"--pack does not heed {flag}; leave it out.")
    if not 1 <= options.seeds <= pack.MOST_SEEDS:
        raise InvalidInput(f"--seeds {options.seeds} does not do; write 1 to {pack.MOST_SEEDS}.")
    fleet = read_fleet(options.nodes)
    models = None if options.any_model else fleet.models
    log = read_log(options.trace, tenant=options.tenant, models=models)
    policy = flags.policy_with(options.settings)
    return pack.Order(fleet, log, policy, options.seeds, any_model=options.any_model)


def _fleet(options: Options) -> Fleet:
    if options.nodes is not None:
        return read_fleet(options.nodes)
    return one_pool(options.gpus or 0)


def _window(options: Options, log: Log) -> tuple[Millis, Millis]:
    first, last = log.works[0].at, log.works[-1].at
    start = first
    if options.start is not None:
        start = flags.option("--from", options.start, flags.seconds)
    if options.span is not None:
        return start, Millis(start + flags.option("--for", options.span, flags.seconds))
    if start > last:
        raise InvalidInput(
            f"--from {options.start} is after the last job, at {last / 1000:.0f}; "
            "choose an earlier one, or say --for how long."
        )
    return start, last
