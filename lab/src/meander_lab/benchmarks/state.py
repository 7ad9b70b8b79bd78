"""./dev bench state: what a batch costs in the state alone, and how that grows with keys and bins.

Count by key, 500,000 rows a batch, keys drawn evenly from those that are there, on one core, without Spark and without
a checkpoint. Figures are medians over batches of this thread's processor time, in nanoseconds per row, after warm-up:

    touch    rows to their keys' rows: overlay, base, values        add      one to each row's count, and mark it
    delta    the changed rows as an Arrow table                     apply    that table into the base

`worst` is the longest batch while the table grows from nothing to its size, in units of the median batch at the end.
Ends with exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from meander.route.keys import KeyType
from meander.state.holding import Holding
from meander.state.spec import TableSpec

CONSOLE = Console(highlight=False)
PARTS = ("touch", "add", "delta", "apply")
Ids = NDArray[np.int64]


def numbers(ids: Ids) -> pa.Array:
    """Keys of 8 bytes."""
    return pa.array(ids)


def texts(ids: Ids) -> pa.Array:
    """Keys such as "user-0012345"."""
    digits = np.char.zfill(ids.astype("U8"), 7)
    return pa.array(np.char.add("user-", digits))


KINDS: dict[str, tuple[pa.DataType, Callable[[Ids], pa.Array]]] = {
    "int": (pa.int64(), numbers),
    "string": (pa.string(), texts),
}


def batch(holding: Holding, key: KeyType, column: pa.Array) -> list[float]:
    """Count one batch; returns the seconds of each part."""
    keys = key.encode([column])
    clock = [thread_time()]
    table = holding.begin()["counts"]
    rows = table.touch(keys)
    clock.append(thread_time())
    table.add("n", rows, 1)
    table.mark(rows)
    clock.append(thread_time())
    delta = table.delta()
    clock.append(thread_time())
    holding.advance(holding.version + 1, {"counts": delta})
    clock.append(thread_time())
    return [float(each) for each in np.diff(clock)]


class StateFigures(NamedTuple):
    """What one case has shown."""

    parts: list[float]
    batch_ms: float
    worst: float | None
    bytes: float
    bytes_on_disk: float

    def shown(self, kind: str, count: int, bins: int) -> list[str]:
        """A line of the table."""
        worst = "-" if self.worst is None else f"{self.worst:.1f}x"
        sizes = f"{self.batch_ms:.0f}", worst, f"{self.bytes:.0f}", f"{self.bytes_on_disk:.0f}"
        return [kind, f"{count / 1e6:g} M", f"{bins:,}", *(f"{value:.0f}" for value in self.parts), *sizes]


def measure(kind: str, count: int, bins: int, rows: int, rounds: int, where: str | None) -> StateFigures:
    """Grow a table to so many keys, then count batches of keys that are there."""
    type_, make = KINDS[kind]
    key = KeyType((("k", type_),))
    folder = Path(tempfile.mkdtemp(dir=where))
    rng = np.random.default_rng(7)
    try:
        holding = Holding.open(folder, [TableSpec("counts", key, (("n", pa.int64()),))], bins)
        holding.install(np.arange(bins), [], 0)
        growing = [
            sum(batch(holding, key, make(np.arange(start, min(count, start + rows)))))
            for start in range(0, count, rows)
        ]
        steady = [batch(holding, key, make(rng.integers(0, count, rows))) for _ in range(rounds)]
        total = statistics.median(map(sum, steady))
        each = [statistics.median(part) * 1e9 / rows for part in zip(*steady, strict=True)]
        size, blocks = holding.bytes().sum() / count, (folder / "counts.arena").stat().st_blocks * 512 / count
        holding.close()
    finally:
        shutil.rmtree(folder)
    # The first batches load the kernels.
    worst = max(growing[2:]) / total if len(growing) > 2 else None
    return StateFigures(each, total * 1e3, worst, size, blocks)


def main() -> int:
    """Measure and print; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="rows in a batch")
    parser.add_argument("--rounds", type=int, default=9, help="batches that are measured")
    parser.add_argument("--quick", action="store_true", help="one million keys only")
    parser.add_argument("--where", default=None, help="directory for the files (default: the system's temporary one)")
    options = parser.parse_args()
    cases = [("int", 1_000_000, 256), ("string", 1_000_000, 256), ("int", 1_000_000, 4096), ("int", 1_000_000, 65536)]
    if not options.quick:
        cases += [("int", 10_000_000, 256), ("int", 10_000_000, 4096), ("string", 10_000_000, 256)]
    table = Table(title="state: ns per row, median", title_justify="left", box=None, pad_edge=False)
    for column in ("keys", "number", "bins", *PARTS, "batch ms", "worst", "B/key", "on disk"):
        table.add_column(column, justify="left" if column == "keys" else "right")
    results: dict[tuple[str, int, int], StateFigures] = {}
    with Progress(console=CONSOLE, transient=True) as progress:
        task = progress.add_task("measuring", total=len(cases))
        for case in cases:
            results[case] = measure(*case, options.rows, options.rounds, options.where)
            table.add_row(*results[case].shown(*case))
            progress.advance(task)
    CONSOLE.print(table)
    CONSOLE.print()
    ints, strings = results["int", 1_000_000, 256], results["string", 1_000_000, 256]
    return _targets(
        [
            ("int keys, 1 M: ms for a batch of 500,000", ints.batch_ms * 500_000 / options.rows, 100.0),
            ("int keys, 1 M: bytes for a key and its count", ints.bytes, 40.0),
            ("string keys / int keys", strings.batch_ms / ints.batch_ms, 3.0),
            ("4096 bins / 256 bins", results["int", 1_000_000, 4096].batch_ms / ints.batch_ms, 1.25),
        ]
    )


def _targets(rows: list[tuple[str, float, float]]) -> int:
    table = Table(title="targets", title_justify="left", box=None, pad_edge=False)
    for column in ("what", "measured", "at most", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, measured, limit in rows:
        table.add_row(what, f"{measured:.3g}", f"{limit:g}", "met" if measured <= limit else "[red]MISSED[/]")
    CONSOLE.print(table)
    return int(any(measured > limit for _, measured, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
