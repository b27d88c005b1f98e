"""`python -m loadtest`: brings a cluster up, runs the measures, prints them, takes it down.

Arguments, order and tear-down only. Each measure has its own module.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from app.core.errors import FairgateError, InvalidInput
from app.devcluster.progress import ConsoleProgress
from app.devcluster.signals import signals_as_interrupt
from loadtest import (
    against,
    cost,
    cost_ablation,
    creations,
    decisions,
    dra,
    estimates,
    largest,
    latency,
    log_windows,
    machine,
    packing,
    page,
    peers,
    philly,
    placement,
    reads,
    recovery,
    releases,
    startup,
    virtual,
    whatif,
)
from loadtest.bench_cluster import BenchCluster, local_cluster
from loadtest.figures import Measure
from loadtest.load import BenchFailed
from loadtest.report import Report, show

MEASURES = {part.NAME: part for part in (creations, releases, latency, reads)}
OFFLINE = {
    part.NAME: part
    for part in (decisions, philly, packing, startup, recovery, largest, whatif, dra, page)
}
"""Measures that need no cluster, or bring up their own."""
LOGGED = (philly, log_windows, packing, estimates, placement, virtual)
ON_LOGS = tuple(part.NAME for part in LOGGED)
SEVERAL = {part.NAME: part for part in (log_windows, estimates, virtual, placement, cost)}
"""Measures with more than one table."""
WRONG_INPUT, UNREACHABLE, DEFECT, INTERRUPTED = 2, 3, 4, 130


class Only(Enum):
    """The measures by name."""

    DECISIONS = decisions.NAME
    REPLAY = philly.NAME
    FAIRNESS = log_windows.NAME
    PACKING = packing.NAME
    COST = cost.NAME
    CREATIONS = creations.NAME
    RELEASES = releases.NAME
    LATENCY = latency.NAME
    READS = reads.NAME
    STARTUP = startup.NAME
    RECOVERY = recovery.NAME
    LARGEST = largest.NAME
    ESTIMATES = estimates.NAME
    WHATIF = whatif.NAME
    VIRTUAL = virtual.NAME
    PLACEMENT = placement.NAME
    DRA = dra.NAME
    PAGE = page.NAME
    PEERS = peers.NAME


class Output(Enum):
    """Format of the report."""

    TEXT = "text"
    JSON = "json"


cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def bench(
    only: Annotated[
        list[Only] | None, typer.Option(help="Take this measure only; may be repeated.")
    ] = None,
    pods: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Pods or decisions a round and arm (default: what the measure usually takes).",
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, max=20, help="Rounds (default: what the measure usually takes)."),
    ] = None,
    versus: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="FOLDER",
            help="Only compare the engine's decisions with the version in this work tree.",
        ),
    ] = None,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="With cost: also leave out one part at a time.")
    ] = False,
    kueue: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With peers: the source of Kueue, with its program in bin/manager.",
        ),
    ] = None,
    output: Annotated[Output, typer.Option(help="text: tables; json: all figures.")] = Output.TEXT,
) -> None:
    """Compare Fairgate with the same machine without it; takes about an hour.

    Brings up its own local cluster and always takes it down again. The report goes to standard
    output, progress to standard error.
    """
    if versus is not None:
        began, box = time.monotonic(), machine.machine()
        measures = (against.measure(ConsoleProgress(), versus, rounds),)
        _print(_report(box, {}, measures, began), output)
        return
    chosen = [one.value for one in only or list(Only)]
    if not only and not philly.TRACES.exists():
        print(
            "loadtest: left out, because CLUSTER_LOGS names no folder with the logs of real "
            "clusters: " + ", ".join(ON_LOGS),
            file=sys.stderr,
        )
        chosen = [name for name in chosen if name not in ON_LOGS]
    if ablation and cost.NAME not in chosen:
        raise InvalidInput("--ablation belongs to the measure cost; add --only cost.")
    if kueue is not None and peers.NAME not in chosen:
        raise InvalidInput("--kueue belongs to the measure peers; add --only peers.")
    if kueue is None and only and peers.NAME in chosen:
        raise InvalidInput(
            "The measure peers needs Kueue; build it, and name its folder by --kueue "
            "(docs/benchmarks.md says how)."
        )
    if kueue is None and peers.NAME in chosen:
        chosen.remove(peers.NAME)
        print(
            "loadtest: left out peers, which needs Kueue; build it, and name its folder by --kueue "
            "(docs/benchmarks.md says how).",
            file=sys.stderr,
        )
    _print(take(chosen, pods, rounds, ConsoleProgress(), ablation, kueue), output)


def _print(report: Report, output: Output) -> None:
    if output is Output.JSON:
        print(json.dumps(report.as_json(), indent=2))
    else:
        show(Console(), report)


def take(
    chosen: list[str],
    pods: int | None,
    rounds: int | None,
    progress: ConsoleProgress,
    ablation: bool,
    kueue: Path | None = None,
) -> Report:
    """Run these measures, on their own cluster if they need one. Raises FairgateError.

    `ablation`: also measure the cost with one part left out at a time. `kueue`: the folder of the
    Kueue that `peers` compares with.
    """
    began, box = time.monotonic(), machine.machine()
    measures = [OFFLINE[n].measure(progress, pods, rounds) for n in chosen if n in OFFLINE]
    for name in chosen:
        if name in SEVERAL:
            measures += SEVERAL[name].measure(progress, pods, rounds)
    if ablation:
        measures.append(cost_ablation.measure(progress, pods, rounds))
    if kueue is not None and peers.NAME in chosen:
        measures.append(peers.measure(progress, kueue, pods, rounds))
    versions = machine.versions({})
    on_cluster = [name for name in chosen if name in MEASURES]
    if on_cluster:
        found, versions = _on_cluster(on_cluster, pods, rounds, progress)
        measures += found
    return _report(box, versions, tuple(measures), began)


def _report(
    box: dict[str, str], versions: dict[str, str], measures: tuple[Measure, ...], began: float
) -> Report:
    command = "python -m loadtest " + shlex.join(sys.argv[1:])
    return Report(command.strip(), box, versions, measures, time.monotonic() - began)


def _on_cluster(
    chosen: list[str], pods: int | None, rounds: int | None, progress: ConsoleProgress
) -> tuple[list[Measure], dict[str, str]]:
    # A signal raises only KeyboardInterrupt, so all started processes are always ended.
    with signals_as_interrupt(), local_cluster(progress) as (cluster, programs):

        async def measure() -> list[Measure]:
            async with BenchCluster.on(cluster, progress) as bench:
                return [await MEASURES[name].measure(bench, pods, rounds) for name in chosen]

        return uvloop.run(measure()), machine.versions(programs)


def main() -> None:
    """Run the command line; an error is printed as a sentence on standard error."""
    try:
        cli()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except FairgateError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        sys.exit(_exit_code(error))


def _exit_code(error: FairgateError) -> int:
    match error:
        case InvalidInput():
            return WRONG_INPUT
        case BenchFailed():
            return DEFECT
        case _:
            return UNREACHABLE


if __name__ == "__main__":
    main()
