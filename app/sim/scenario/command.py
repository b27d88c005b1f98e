"""`fairgate simulate`: reads a scenario, plays it in virtual time and prints the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from app.core.model import Millis
from app.core.quantities import CPU
from app.sim.cluster.virtual_cluster import ProgressCallback, VirtualCluster
from app.sim.report import plot
from app.sim.report.json_report import to_json
from app.sim.report.progress import progress
from app.sim.report.text_report import print_outcome
from app.sim.scenario.guarantee_check import guarantee_warnings
from app.sim.scenario.loader import Scenario, load
from app.sim.scenario.result import ScenarioResult, collect_result
from app.terminal.output import OutputOptions, as_text, warn


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """The command line. `path` may be `-`."""

    path: str
    output: OutputOptions
    plot: Path | None = None


def run(options: SimulateOptions) -> None:
    """Simulate and print. Raises InvalidInput if the scenario is invalid."""
    scenario = load(options.path)
    if options.plot is not None:
        plot.check(options.plot, Millis(0), scenario.until)
    for doubt in guarantee_warnings(scenario):
        warn(doubt)
    with progress("simulating", Millis(0), scenario.until) as tell:
        outcome = simulate(scenario, tell)
    if options.output.is_data:
        print(as_text(options.output, to_json(outcome)))
    else:
        print_outcome(outcome, Console(highlight=False, markup=False, emoji=False))
    if options.plot is not None:
        _draw(outcome, options.plot)


def simulate(scenario: Scenario, progress: ProgressCallback | None = None) -> ScenarioResult:
    """Play a scenario to its end."""
    world = VirtualCluster(
        scenario.managed,
        scenario.cluster.nodes,
        scenario.tenants,
        scenario.cluster.pools,
        scenario.policy,
    )
    for work in scenario.works:
        world.add_workload(work)
    world.advance_to(scenario.until, progress)
    return collect_result(scenario, world)


def _draw(outcome: ScenarioResult, path: Path) -> None:
    scenario = outcome.scenario
    device = scenario.device or next(iter(scenario.counted))
    plot.plot(
        outcome.timeline,
        scenario.capacity,
        device,
        Millis(0),
        scenario.until,
        path,
        scenario.name,
        unit=1000 if device == CPU else 1,
    )
