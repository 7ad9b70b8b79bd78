"""How long single records take, at a rate that does not wait for the query. For `./dev bench engine`.

Record i is created at start + i / rate, whatever the query does meanwhile, and is done when the batch that holds it is
committed. Spark's own `rate` source hands out whole seconds only and would hide all that is shorter, so the records
come from a feed that is given those of every 20 milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from meander_lab.benchmarks.engine_figures import Histogram
from meander_lab.benchmarks.engine_measure import ended_s, taken
from meander_lab.benchmarks.engine_peers import NumberFeed, Running

EVERY_S = 0.02
PRELOAD = 500_000


def preload(feed: NumberFeed, running: Running, keys: int) -> None:
    """Count every key once."""
    for start in range(0, keys, PRELOAD):
        feed.push(-min(start + PRELOAD, keys), -start)
        running.settle()


def latencies(feed: NumberFeed, running: Running, rate: int, warm_s: float, seconds: float) -> Histogram:
    """The milliseconds from creation to commit of the records that are created after the warm-up."""
    ended = threading.Event()
    first = len(feed.ranges)
    began = time.time()

    def create() -> None:
        created = 0
        while not ended.wait(EVERY_S - (time.time() - began) % EVERY_S):
            due = min(int((time.time() - began) * rate), int((warm_s + seconds) * rate))
            if due > created:
                feed.push(created, due)
                created = due

    creator = threading.Thread(target=create, name="records", daemon=True)
    creator.start()
    time.sleep(warm_s + seconds + 2 * EVERY_S)
    ended.set()
    creator.join()
    running.settle()

    histogram = Histogram()
    for progress in running.progress():
        for at in taken(progress):
            if at >= first:
                numbers = np.arange(*feed.ranges[at])
                numbers = numbers[numbers >= warm_s * rate]
                histogram.add((ended_s(progress) - began - numbers / rate) * 1000)
    return histogram


def plot(panels: Mapping[str, Mapping[str, Histogram]], path: Path) -> None:
    """Draw the share of records above each latency, one panel for each kind of key."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(6 * len(panels), 4), sharey=True, squeeze=False)
    for axis, (title, lines) in zip(axes[0], panels.items(), strict=True):
        for name, histogram in lines.items():
            edges, above = histogram.ccdf()
            axis.step(edges, np.maximum(above, 0.5 / max(histogram.total, 1)), where="post", label=name)
        axis.set(xscale="log", yscale="log", title=title, xlabel="latency [ms]")
        axis.grid(True, which="both", alpha=0.2)
        axis.legend()
    axes[0][0].set_ylabel("share of records above")
    figure.tight_layout()
    if not path.parent.exists():
        path.parent.mkdir(parents=True)
        (path.parent / ".gitignore").write_text("*\n")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
