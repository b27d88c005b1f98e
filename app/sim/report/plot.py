"""Plots of timelines: devices held by tenant over time, and waits by workload size or by user.

Needs matplotlib, an optional extra. Only this module imports it, and only to draw a plot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, Resource
from app.sim.cluster.workload import TimelineEntry
from app.sim.metrics.gpu_timeline import Holdings, holdings, largest_holders
from app.sim.metrics.waits import SIZE_NAMES, Waits, waits_of
from app.sim.metrics.window import waits_by_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Paul Tol's palette of ten colours for colour-blind readers. All other tenants are grey.
COLOURS = (
    "#332288", "#88CCEE", "#44AA99", "#117733", "#999933",
    "#DDCC77", "#CC6677", "#882255", "#AA4499", "#661100",
)  # fmt: skip
REST = "#BBBBBB"
POLICIES = ("#332288", "#CC6677", "#44AA99", "#DDCC77", "#882255")
NAMED = len(COLOURS)
BINS = 600
DOTS = 150
UNITS = (("days", 86_400, 4), ("hours", 3_600, 2), ("minutes", 60, 2))
"""Units of time, their seconds, and the smallest number of units for which each is used."""


def check(path: Path | str, start: Millis, end: Millis) -> type[Figure]:
    """Return the class that draws, after checking that a plot can be written to `path`.

    Call it before a long run. Raises InvalidInput if matplotlib is missing, the window is empty,
    the folder does not exist, or the file type is unknown.
    """
    figure_type = _figure_type()
    if end <= start:
        raise InvalidInput("--plot: there is nothing to draw in no time at all; play for longer.")
    folder, ending = Path(path).parent, Path(path).suffix.lower().removeprefix(".")
    if not folder.is_dir():
        raise InvalidInput(
            f"--plot {path}: there is no folder {folder}; create it, or write another path."
        )
    if ending not in figure_type().canvas.get_supported_filetypes():
        raise InvalidInput(
            f"--plot {path}: no picture has such a name; write one that ends in .png, .svg or .pdf."
        )
    return figure_type


def plot(
    timeline: Sequence[TimelineEntry],
    capacity: Amounts,
    device: Resource | None,
    start: Millis,
    end: Millis,
    path: Path | str,
    title: str,
    *,
    unit: int = 1,
) -> None:
    """Draw one timeline into a file; `unit` base units are one device. Raises InvalidInput."""
    compare({title: timeline}, capacity, device, start, end, path, unit=unit)


def compare(
    runs: Mapping[str, Sequence[TimelineEntry]],
    capacity: Amounts,
    device: Resource | None,
    start: Millis,
    end: Millis,
    path: Path | str,
    title: str = "",
    *,
    unit: int = 1,
    user_waits: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Draw timelines of the same work under several policies, one above the other, and their waits.

    A tenant has the same colour in all timelines. `user_waits` has the mean wait of each user in
    seconds, by policy; if it is given, these are drawn in place of the waits by workload size.
    Raises InvalidInput if `check` does, if there are no devices, or if the file cannot be written.
    """
    figure_type = check(path, start, end)
    if device is None:
        raise InvalidInput("There is nothing to draw: no pool has devices; draw one that has.")
    held = {name: holdings(run, device, start, end, BINS, unit) for name, run in runs.items()}
    named = largest_holders(held.values(), NAMED)
    colours = dict(zip(named, COLOURS, strict=False))
    figure: Figure = figure_type(figsize=(11, 3.4 * len(runs) + 3.6), layout="constrained")
    axes = figure.subplots(len(runs) + 1, 1)
    for (name, held_here), area in zip(held.items(), axes, strict=False):
        area.set_title(name, loc="left")
        _draw_holdings(area, held_here, colours, end - start, capacity.get(device, 0) / unit)
    if user_waits is not None:
        _draw_user_waits(axes[-1], user_waits)
    else:
        sizes = {n: waits_by_size(waits_of(r, start, end), device, unit) for n, r in runs.items()}
        _draw_waits(axes[-1], sizes)
    if title:
        figure.suptitle(title)
    try:
        figure.savefig(path, dpi=DOTS)
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        raise InvalidInput(
            f"--plot {path}: the picture cannot be written ({why}); write another path."
        ) from error


def _figure_type() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidInput(
            "--plot needs matplotlib, which is not installed; "
            "install it with: pip install '.[plot]' in the source."
        ) from error
    return Figure


def _draw_holdings(
    area: Axes, held: Holdings, colours: Mapping[str, str], span: int, size: float
) -> None:
    unit, size_of_unit = _unit(span / 1000)
    edges = [index * span / 1000 / size_of_unit / BINS for index in range(BINS + 1)]
    middles = [(left + right) / 2 for left, right in pairwise(edges)]
    layers = {name: held.get(name, [0.0] * BINS) for name in colours}
    rest = [name for name in held if name not in colours]
    if rest:
        layers[f"{len(rest)} others"] = [sum(row) for row in zip(*map(held.get, rest), strict=True)]
    if layers:
        shades = [*colours.values(), REST][: len(layers)]
        area.stackplot(middles, *layers.values(), labels=list(layers), colors=shades)
    area.axhline(size, color="black", linewidth=1, linestyle="--", label="capacity")
    area.set_xlim(0, edges[-1])
    area.set_ylim(0, size * 1.05 or 1)
    area.set_xlabel(f"{unit} since the window began")
    area.set_ylabel("devices held")
    _explain(area, topmost_first=True)


def _draw_waits(area: Axes, runs: Mapping[str, Mapping[str, Waits]]) -> None:
    """Draw a bar up to the median wait of each size, and a line up to the 95th percentile."""
    names = [name for name in SIZE_NAMES if any(name in run for run in runs.values())]
    width = 0.8 / len(runs)
    longest = max((wait.p95 for run in runs.values() for wait in run.values()), default=0.0)
    unit, seconds = _unit(longest)
    for place, run in enumerate(runs):
        colour = POLICIES[place % len(POLICIES)]
        prefix = f"{run}: " if len(runs) > 1 else ""
        waits = [runs[run].get(name, Waits()) for name in names]
        spots = [index + (place + 0.5) * width - 0.4 for index in range(len(names))]
        median = [wait.p50 / seconds for wait in waits]
        high = [wait.p95 / seconds for wait in waits]
        area.bar(spots, median, width * 0.9, color=colour, label=f"{prefix}median")
        area.vlines(spots, median, high, color=colour, linewidth=1)
        area.plot(spots, high, "_", color=colour, markersize=9, label=f"{prefix}95th percentile")
    area.set_xticks(range(len(names)), names)
    area.set_ylim(bottom=0)
    area.set_title("How long work waited", loc="left")
    area.set_xlabel("devices asked for by one workload")
    area.set_ylabel(f"wait, {unit}")
    _explain(area, topmost_first=False)


def _draw_user_waits(area: Axes, runs: Mapping[str, Sequence[float]]) -> None:
    """Draw the mean waits of the users of each run, sorted, on one axis."""
    unit, seconds = _unit(max((wait for waits in runs.values() for wait in waits), default=0.0))
    for colour, (name, waits) in zip(POLICIES, runs.items(), strict=False):
        ordered = [wait / seconds for wait in sorted(waits)]
        ranks = [100 * (index + 1) / len(ordered) for index in range(len(ordered))]
        area.step(ranks, ordered, color=colour, where="pre", label=name)
    area.set_xlim(0, 100)
    area.set_ylim(bottom=0)
    area.set_title("Mean wait of each user", loc="left")
    area.set_xlabel("users, from the shortest wait to the longest, %")
    area.set_ylabel(f"mean wait, {unit}")
    _explain(area, topmost_first=False)


def _unit(seconds: float) -> tuple[str, int]:
    """Return the best unit for a duration, and its seconds."""
    fitting = ((name, size) for name, size, least in UNITS if seconds >= least * size)
    return next(fitting, ("seconds", 1))


def _explain(area: Axes, *, topmost_first: bool) -> None:
    """Put the legend next to the plot, in the order of the stacked areas."""
    handles, labels = area.get_legend_handles_labels()
    if topmost_first:
        handles, labels = handles[::-1], labels[::-1]
    area.legend(
        handles,
        labels,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize="small",
        frameon=False,
    )
