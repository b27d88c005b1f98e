"""`fairgate simulate`: reads a scenario, plays it in virtual time, prints what came of it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from app.core.model import Millis
from app.core.resources import CPU
from app.sim import plot
from app.sim.outcome import Outcome, sum_up
from app.sim.progress import progress
from app.sim.promises import overpromised
from app.sim.report import to_json
from app.sim.scenario import Scenario, load
from app.sim.tables import print_outcome
from app.sim.world import Tell, World


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked. `path` may be `-`, `output` is `json` or `text`."""

    path: str
    output: str = "text"
    plot: Path | None = None


def run(options: Options) -> None:
    """Simulate and print. Raises InvalidInput if the scenario makes no sense."""
    scenario = load(options.path)
    if options.plot is not None:
        plot.check(options.plot, Millis(0), scenario.until)
    for doubt in overpromised(scenario):
        print(f"fairgate: {doubt}", file=sys.stderr)
    with progress("simulating", Millis(0), scenario.until) as tell:
        outcome = simulate(scenario, tell)
    if options.output == "json":
        print(json.dumps(to_json(outcome), indent=1))
    else:
        print_outcome(outcome, Console(highlight=False, markup=False, emoji=False))
    if options.plot is not None:
        _draw(outcome, options.plot)


def simulate(scenario: Scenario, tell: Tell | None = None) -> Outcome:
    """Play a scenario to its end."""
    world = World(
        scenario.managed,
        scenario.cluster.nodes,
        scenario.tenants,
        scenario.cluster.pools,
        scenario.policy,
    )
    for work in scenario.works:
        world.add(work)
    world.run(scenario.until, tell)
    return sum_up(scenario, world)


def _draw(outcome: Outcome, path: Path) -> None:
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
