"""What the batches of a query took, and where their milliseconds went. For `./dev bench engine`."""

from __future__ import annotations

import cProfile
import io
import pstats
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from meander_lab.benchmarks.engine_figures import medians
from meander_lab.benchmarks.engine_peers import Running


@dataclass(frozen=True)
class Measured:
    """The batches of one run, after those that warm it up."""

    rows: int
    times_ms: list[float]
    spark_ms: dict[str, float]
    driver_ms: dict[str, float]
    task_ms: dict[str, float]
    state_rows: int
    state_bytes: int

    @property
    def median_ms(self) -> float:
        """The median batch."""
        return statistics.median(self.times_ms)

    @property
    def rows_per_s(self) -> float:
        """Rows of a batch over the time of the median batch."""
        return self.rows / self.median_ms * 1000


def measured(running: Running, rows: int, drop: int) -> Measured:
    """The figures of a run so far, without its first batches; the parts are medians."""
    progress = running.progress()[drop:]
    kept = {each["batchId"] for each in progress}
    mine = [each for each in running.ours.recent_progress if each.batch in kept] if running.ours else []
    slowest = [max((worker.spent_ms for worker in each.workers), key=lambda ms: ms["busy"]) for each in mine]
    last = mine[-1].workers if mine else ()
    return Measured(
        rows,
        [float(each["durationMs"]["triggerExecution"]) for each in progress],
        medians([each["durationMs"] for each in progress]),
        medians([each.spent_ms for each in mine]),
        medians(slowest),
        sum(worker.state_rows for worker in last),
        sum(worker.state_bytes for worker in last),
    )


def ended_s(progress: dict[str, Any]) -> float:
    """When a batch was committed, in seconds since 1970, by Spark's progress."""
    began = datetime.fromisoformat(progress["timestamp"]).timestamp()
    return float(began + progress["durationMs"]["triggerExecution"] / 1000)


def taken(progress: dict[str, Any]) -> range:
    """Which of a feed's ranges a batch has taken."""
    source = progress["sources"][0]
    start, end = (str(source[name]) for name in ("startOffset", "endOffset"))
    return range(int(start) + 1 if start.lstrip("-").isdigit() else 0, int(end) + 1)


def python_bytes() -> int:
    """Memory of the Python processes below the JVM that this process has started; shared pages count once."""
    parents: dict[str, str] = {}
    names: dict[str, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = stat.read_text()
            pid = stat.parent.name
            names[pid] = text[text.index("(") + 1 : text.rindex(")")]
            parents[pid] = text[text.rindex(")") + 2 :].split()[1]
    mine = Path("/proc/self").resolve().name
    total = 0
    for pid, name in names.items():
        above = []
        at = pid
        while at in parents and at != mine:
            at = parents[at]
            above.append(names.get(at))
        if at == mine and "java" in above and name.startswith("python"):
            with suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


@contextmanager
def profiled(lines: int = 30) -> Iterator[io.StringIO]:
    """Profile what the driver does in each batch of ours; the text is there at the end."""
    from meander.engine.spark.stream import SparkBatches

    profile, text, plain = cProfile.Profile(), io.StringIO(), SparkBatches.__call__

    def call(self: SparkBatches, rows: Any, batch: int) -> None:
        # The first batches pay for imports and plans that later ones find ready.
        if batch < 3:
            plain(self, rows, batch)
        else:
            profile.runcall(plain, self, rows, batch)

    SparkBatches.__call__ = call  # type: ignore[method-assign]
    try:
        yield text
    finally:
        SparkBatches.__call__ = plain  # type: ignore[method-assign]
        with suppress(TypeError):  # Nothing ran.
            pstats.Stats(profile, stream=text).sort_stats("cumulative").print_stats(lines)
