"""Exact projected migration costs on Spark: `exact` with its pairs spread over tasks.

1. Tasks make the feasible partitionings, each a range of ranks.
2. Tasks compute the costs of all pairs once, in square blocks above the diagonal, and write each block as a plain
   array of floats into the folder's work directory. A block is mapped, not parsed, when it is read; between two sweeps
   it stays in the page cache of its machine, outside anyone's heap; and it is still there after a crash.
3. In each sweep the present costs are broadcast, tasks take the minima over their blocks, and the driver, which holds
   no pair, follows the choices until the next one.

All executors must see the folder under the same path, as they do in local mode and on one machine.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, TooLarge
from meander.outlook.exact import Case, Sweep, converge, solved
from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.files import Folder, put
from meander.outlook.outlook import Flags, Floats, Ints
from meander.progress import Tell, progress_bars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

ArrowTask = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

NEEDED = ("meander", "numba", "numpy", "pyarrow")
"""Modules of which a Python that is not ours would lack one."""

FEW = 6_000
"""Up to so many partitionings the driver is done before Spark would have started its tasks."""

BLOCK = 2048
"""Partitionings along one side of a block."""

SLICE = 4096
"""Partitionings that one task makes."""

ROUND = 16
"""Blocks for each core that are computed between two reports of progress; what is lost when the driver is killed."""

MOST_TASKS = 32
"""Tasks of a sweep: each returns a number for every partitioning and number of workers, and the driver reads them."""

MOST_BYTES = 8_000_000_000
"""Costs of all pairs together, on disk."""


def exact(
    spark: SparkSession,
    case: Case,
    path: str | Path | None = None,
    tell: Tell | None = None,
    *,
    few: int = FEW,
    block: int = BLOCK,
) -> ExactOutlook:
    """Return the projected costs of all feasible partitionings, computed on Spark.

    Args:
        spark: a Spark session.
        case: what is to be solved.
        path: a folder for the outlook and for what is done so far; see `pmc`.
        tell: called with progress; see `pmc`.
        few: up to so many partitionings are done in the driver.
        block: partitionings along one side of a block of costs.

    Raises:
        TooLarge: there are too many partitionings, or no space for the costs of their pairs.
        InvalidOption: the folder holds an outlook of other inputs, or executors do not see it.
    """
    with Folder(path, ExactOutlook.kind, case.inputs()) as folder:
        outlook = folder.finished()
        if outlook is None and case.partitionings <= few:
            outlook = solved(case)
            folder.finish(outlook)
        elif outlook is None:
            with progress_bars(tell) as report:
                outlook = _Work(spark, case, folder, block, report).run()
            folder.finish(outlook)
    assert isinstance(outlook, ExactOutlook)
    return outlook


class Block(NamedTuple):
    """The pairs of two ranges of ranks, the first range not behind the second."""

    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start


class Share(NamedTuple):
    """What a task needs to know beside which blocks are its own."""

    case: Case
    work: Path
    blocks: Sequence[Block]

    def file(self, which: int) -> Path:
        """Where the costs of a block are."""
        rows, columns = self.blocks[which]
        return self.work / f"costs-{rows.start}-{columns.start}.{self.case.dtype.name}"

    def is_there(self, which: int) -> bool:
        """Whether the costs of a block are computed."""
        rows, columns = self.blocks[which].shape
        path = self.file(which)
        return path.exists() and path.stat().st_size == rows * columns * self.case.dtype.itemsize

    def costs(self, which: int) -> NDArray[Any]:
        """The costs of a block, mapped."""
        # Copy on write, though nobody writes: for an array that is read-only Numba would compile its kernels again.
        return np.memmap(self.file(which), self.case.dtype, "c", shape=self.blocks[which].shape)

    def compute(self, which: int, table: Ints) -> None:
        """Compute the costs of a block and write them, whole or not at all."""
        rows, columns = self.blocks[which]
        costs = self.case.costs(table[rows], table[columns], same=rows == columns)
        put(self.file(which), costs.data)


class _Work:
    """One computation, as far as it has got."""

    def __init__(self, spark: SparkSession, case: Case, folder: Folder, block: int, tell: Tell) -> None:
        self.spark, self.case, self.folder, self.tell = spark, case, folder, tell
        self.cores = spark.sparkContext.defaultParallelism
        self.work = folder.work
        block = int(folder.claim({"block": block})["block"])
        edges = [*range(0, case.partitionings, block), case.partitionings]
        bands = [slice(begin, end) for begin, end in pairwise(edges)]
        self.blocks = [Block(rows, columns) for at, rows in enumerate(bands) for columns in bands[at:]]
        self.share = Share(case, self.work, self.blocks)

    def run(self) -> ExactOutlook:
        """Do what is left to do and return the outlook."""
        self._check_space()
        table = self._enumerate()
        feasible = self.case.feasible(table)
        self._compute_costs()
        values, sweeps = self._converge(feasible)
        return self.case.outlook(table, values, sweeps)

    def _check_space(self) -> None:
        sizes = [rows * columns * self.case.dtype.itemsize for rows, columns in (b.shape for b in self.blocks)]
        missing = sum(size for which, size in enumerate(sizes) if not self.share.is_there(which))
        room = min(MOST_BYTES, sum(sizes) - missing + shutil.disk_usage(self.work).free)
        if sum(sizes) > room:
            if missing == sum(sizes):
                shutil.rmtree(self.work)
            raise TooLarge(
                f"the costs between {self.case.partitionings} partitionings take {sum(sizes) / 1e9:.1f} GB "
                f"and there is room for {room / 1e9:.1f}; use a learned outlook, fewer bins or a smaller tau"
            )

    def _enumerate(self) -> Ints:
        table = self.folder.recall("ends")
        if table is None:
            self.tell(0, self.case.partitionings, "partitionings")
            table = enumerated(self.spark, self.case)
            self.folder.keep("ends", table)
        self.tell(self.case.partitionings, self.case.partitionings, "partitionings")
        return table

    def _compute_costs(self) -> None:
        share, total = self.share, len(self.blocks)
        missing = [which for which in range(total) if not share.is_there(which)]
        self.tell(total - len(missing), total, "blocks of pairs")
        while missing:
            now, missing = missing[: ROUND * self.cores], missing[ROUND * self.cores :]
            run(self.spark, len(now), _computing(share, now), "block int")
            if not all(map(share.is_there, now)):
                raise InvalidOption(
                    f"the executors do not see {self.work.parent}; give a path on a file system that all of them share"
                )
            self.tell(total - len(missing), total, "blocks of pairs")

    def _converge(self, feasible: Flags) -> tuple[Floats, int]:
        context, case = self.spark.sparkContext, self.case
        allowed = context.broadcast(feasible[case.targets])
        tasks = min(len(self.blocks), 2 * self.cores, MOST_TASKS)

        def sweep(onward: Floats) -> Sweep:
            sent = context.broadcast(onward)
            parts = run(self.spark, tasks, _sweeping(self.share, tasks, sent, allowed), "least binary, choice binary")
            sent.destroy()
            best = Sweep.empty(*onward.shape)
            for least, choice in zip(parts["least"].to_pylist(), parts["choice"].to_pylist(), strict=True):
                best.improve(
                    slice(None),
                    np.frombuffer(least).reshape(onward.shape),
                    np.frombuffer(choice, dtype=np.int64).reshape(onward.shape),
                )
            return best

        def keep(values: Floats, sweeps: int) -> None:
            self.folder.keep(f"values-{sweeps:06d}", values)
            for older in sorted(self.work.glob("values-*.npy"))[:-1]:
                older.unlink()
            self.tell(sweeps, None, "sweeps")

        kept = sorted(self.work.glob("values-*.npy"))
        start = (np.load(kept[-1]), int(kept[-1].stem[-6:])) if kept else None
        self.tell(start[1] if start else 0, None, "sweeps")
        try:
            return converge(case, feasible, sweep, start, keep)
        finally:
            allowed.destroy()


def enumerated(spark: SparkSession, case: Case) -> Ints:
    """All feasible partitionings, made on Spark, as a table in the order of their ranks."""
    size = case.partitionings
    rows = run(spark, -(-size // SLICE), _making(case), "rank bigint, ends array<bigint>")
    ranks = rows["rank"].to_numpy()
    ends = rows["ends"].combine_chunks().flatten().to_numpy().reshape(size, -1)
    return np.ascontiguousarray(ends[np.argsort(ranks)])


def _making(case: Case) -> ArrowTask:
    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for start in (which * SLICE for which in ids(batches)):
            stop = min(start + SLICE, case.partitionings)
            table = case.table(start, stop)
            offsets = np.arange(0, table.size + 1, table.shape[1], dtype=np.int32)
            ends = pa.ListArray.from_arrays(pa.array(offsets), pa.array(table.ravel()))
            yield pa.RecordBatch.from_pydict({"rank": pa.array(np.arange(start, stop)), "ends": ends})

    return make


def _computing(share: Share, blocks: Sequence[int]) -> ArrowTask:
    def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for which in (blocks[at] for at in ids(batches)):
            # Where the folder is not shared nothing is written, and the driver notices.
            if (share.work / "ends.npy").exists():
                share.compute(which, np.load(share.work / "ends.npy"))
            yield pa.RecordBatch.from_pydict({"block": pa.array([which], pa.int32())})

    return compute


def _sweeping(share: Share, tasks: int, onward: Any, allowed: Any) -> ArrowTask:
    def sweep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for task in ids(batches):
            best = Sweep.empty(*onward.value.shape)
            for which in range(task, len(share.blocks), tasks):
                best.look(share.costs(which), *share.blocks[which], onward.value, allowed.value)
            columns = {name: pa.array([array.tobytes()], pa.binary()) for name, array in best._asdict().items()}
            yield pa.RecordBatch.from_pydict(columns)

    return sweep


def run(spark: SparkSession, tasks: int, task: ArrowTask, schema: str, slices: int | None = None) -> pa.Table:
    """Run tasks 0, 1, 2, ... on Spark, each in a slice of its own unless `slices` is given, and return their rows.

    Raises:
        InvalidOption: the Python of the session's workers lacks Meander or a module that it needs.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        return spark.range(0, tasks, 1, min(tasks, slices or tasks)).mapInArrow(task, schema).toArrow()
    except (PySparkException, Py4JJavaError) as error:
        lacks = re.search(rf"No module named '?({'|'.join(NEEDED)})\b", str(error))
        if lacks is None:
            raise
        raise InvalidOption(
            f"the Python workers of this Spark session lack the module {lacks[1]!r}; before Spark starts set "
            f"PYSPARK_PYTHON to a Python that has Meander, such as {sys.executable}, or use me.session()"
        ) from None


def ids(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The tasks that a call has to do."""
    for batch in batches:
        yield from batch.column(0).to_pylist()
