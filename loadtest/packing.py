"""Unallocated GPUs on a heterogeneous cluster if pods arrive and never end: packing only."""

from __future__ import annotations

import json
import subprocess
import sys

from app.devcluster.progress import Told
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.philly import traces

NAME = "packing"
SEEDS = 10
MOST = Target(most=5.5)


def measure(progress: Told, decisions: int | None, rounds: int | None) -> Measure:
    """Fill the openb cluster with pods sampled from its log, once for each seed."""
    seeds = rounds or SEEDS
    with progress.step(f"packing, pods on the models they name, {seeds} seeds"):
        named = left_over(seeds)
    with progress.step(f"packing, pods on any model, {seeds} seeds"):
        anywhere = left_over(seeds, "--any-model")
    return Measure(
        NAME,
        "GPUs left unallocated on the nodes of openb",
        (
            "`fairgate replay openb_2023.csv.gz --nodes openb_nodes.csv --pack --seeds "
            f"{seeds}`: pods drawn from the log until they ask for all GPUs; none leaves.",
            "Published for pods that may use any model (`--any-model`): best fit 7.14 %, "
            "fragmentation gradient descent 4.77 % (Weng et al., USENIX ATC 2023).",
        ),
        (
            Series("a seed each, on the models that pods name", "%", named),
            Series("a seed each, on any model", "%", anywhere),
        ),
        (
            Compared(_mean("mean of the seeds, on the models that pods name", named), MOST),
            Compared(_mean("mean of the seeds, on any model", anywhere)),
        ),
    )


def left_over(seeds: int, *flags: str) -> tuple[float, ...]:
    """Return the unallocated GPUs in percent for each seed."""
    pods, nodes = traces() / "openb_2023.csv.gz", traces() / "openb_nodes.csv"
    asked = [str(pods), "--nodes", str(nodes), "--pack", "--seeds", str(seeds), *flags]
    command = [sys.executable, "-m", "app", "replay", *asked, "--output", "json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return tuple(float(s["unallocated_gpu_percent"]) for s in json.loads(done.stdout)["seeds"])


def _mean(title: str, values: tuple[float, ...]) -> Series:
    return Series(title, "%", (sum(values) / len(values),))
