"""How much of a cluster of many kinds of nodes stays unusable when nothing but packing counts."""

from __future__ import annotations

import json
import subprocess
import sys

from app.dev.progress import Told
from loadtest.figures import Compared, Measure, Series, Target
from loadtest.philly import traces

NAME = "packing"
SEEDS = 10
MOST = Target(most=5.5)


def measure(progress: Told, decisions: int | None, rounds: int | None) -> Measure:
    """Fill the openb cluster with pods drawn from its log, once for each seed."""
    pods, nodes = traces() / "openb_2023.csv.gz", traces() / "openb_nodes.csv"
    asked = [str(pods), "--nodes", str(nodes), "--pack", "--seeds", str(rounds or SEEDS)]
    with progress.step(f"packing, {rounds or SEEDS} seeds"):
        command = [sys.executable, "-m", "app", "replay", *asked, "--output", "json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    values = tuple(float(seed["unallocated_percent"]) for seed in told["seeds"])
    mean = Series("mean of the seeds", "%", (sum(values) / len(values),))
    return Measure(
        NAME,
        "GPU left unallocated on openb's nodes",
        (
            "`fairgate replay openb_2023.csv.gz --nodes openb_nodes.csv --pack --seeds 10`: pods "
            "drawn from the log until they ask for all of the cluster's GPUs; none leaves.",
        ),
        (Series("unallocated GPU, a seed each", "%", values),),
        (Compared(mean, MOST),),
    )
