"""Projected migration costs, computed on Spark: exactly where partitionings are few, learned by practice elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meander.errors import InvalidOption, InvalidProblem, TooLarge
from meander.options import kind, listed
from meander.outlook.exact import Case
from meander.outlook.files import Folder
from meander.outlook.learned import LearnedOutlook
from meander.outlook.outlook import Outlook
from meander.outlook.pmc_exact import ArrowTask, exact, ids, run
from meander.outlook.practice import Effort, Lesson, Samples, learn
from meander.outlook.transitions import Transitions
from meander.progress import Tell, progress_bars

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

EXACTLY = 20_000
"""Up to so many partitionings the exact form is the default: about a minute on two cores."""

DRIFT = 0.05


def pmc(
    spark: SparkSession,
    load: Iterable[float],
    state: Iterable[float],
    transitions: Transitions,
    tau: float = 0.2,
    gamma: float = 0.8,
    path: str | Path | None = None,
    *,
    exactly: bool | None = None,
    drift: float = DRIFT,
    effort: Effort | None = None,
    tell: Tell | None = None,
) -> Outlook:
    """Return what migrations to come will cost, for planner 'mtm'.

    Args:
        spark: a Spark session; its executors do the work.
        load: work of each bin.
        state: bytes of state of each bin.
        transitions: how often n workers become n', see `Transitions.of`.
        tau: the load cap; where no assignment by intervals keeps it, the smallest one that does is used, and noted in
            `outlook.taus`.
        gamma: how much the next migration counts against this one, from 0 to below 1.
        path: a folder for the outlook and for what is done so far: called again after a crash, it goes on from there.
        exactly: whether to look at all partitionings. By default that is done where they are few; else costs are
            learned by practice, see `outlook.practice`.
        drift: how much a bin's load changes from one migration to the next, as the standard deviation of its
            logarithm; only what is learned looks at it.
        effort: how much is practised.
        tell: called with progress as (done, total, what); without it there are bars on a terminal and in a notebook.

    Returns:
        The outlook, to be given to `me.plan(problem, "mtm", outlook=...)`.

    Raises:
        TooLarge: the exact form was asked for and there are too many partitionings.
        InvalidOption: an argument is wrong, or the folder holds an outlook of other inputs.
    """
    loads, states = listed("load", load, InvalidProblem), listed("state", state, InvalidProblem)
    if not isinstance(transitions, Transitions):
        raise InvalidOption(f"transitions must be made by Transitions.of or Transitions.given, not {kind(transitions)}")
    if effort is not None and not isinstance(effort, Effort):
        raise InvalidOption(f"effort must be an Effort, such as Effort(rounds=5), not {kind(effort)}")
    case = Case.of(loads, states, transitions, tau, gamma)
    if exactly is None:
        try:
            exactly = case.partitionings <= EXACTLY
        except TooLarge:
            exactly = False
    if exactly:
        return exact(spark, case, path, tell)
    return learned(spark, Lesson.of(loads, states, transitions, tau, gamma, drift), effort or Effort(), path, tell)


def learned(
    spark: SparkSession, lesson: Lesson, effort: Effort, path: str | Path | None, tell: Tell | None
) -> LearnedOutlook:
    """Return an outlook that was learned by practice on the executors."""
    inputs = LearnedOutlook.of(lesson, effort, {}).inputs()
    with Folder(path, LearnedOutlook.kind, inputs) as folder, progress_bars(tell) as report:
        outlook = folder.finished()
        if outlook is None:
            folder.claim({})
            lessons = learn(lesson, effort, functools.partial(_everywhere, spark), report, folder.recall, folder.keep)
            outlook = LearnedOutlook.of(lesson, effort, lessons)
            folder.finish(outlook)
    assert isinstance(outlook, LearnedOutlook)
    return outlook


def _everywhere(spark: SparkSession, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Call a function with each task on the executors; results are samples or numbers, in the order of the tasks."""
    slices = min(len(tasks), 4 * spark.sparkContext.defaultParallelism)
    rows = run(spark, len(tasks), _calling(function, tasks), "task int, arrays array<binary>", slices).to_pylist()
    return [_unpacked(row["arrays"]) for row in sorted(rows, key=lambda row: row["task"])]


def _calling(function: Callable[[Any], Any], tasks: Sequence[Any]) -> ArrowTask:
    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for task in ids(batches):
            packed = pa.array([_packed(function(tasks[task]))], pa.list_(pa.binary()))
            yield pa.RecordBatch.from_pydict({"task": pa.array([task], pa.int32()), "arrays": packed})

    return call


def _packed(result: Samples | float) -> list[bytes]:
    """Samples as bytes, the widest column by what is not zero in it: few numbers of workers are likely next."""
    if not isinstance(result, Samples):
        return [np.float64(result).tobytes()]
    after = result.after.ravel()
    there = np.flatnonzero(after).astype(np.uint32)
    parts = (result.left, result.cost, result.before, np.array(result.after.shape), there, after[there])
    return [part.tobytes() for part in parts]


def _unpacked(arrays: Sequence[bytes]) -> Samples | float:
    if len(arrays) == 1:
        return float(np.frombuffer(arrays[0])[0])
    left, cost = np.frombuffer(arrays[0], np.int64), np.frombuffer(arrays[1])
    after = np.zeros(np.frombuffer(arrays[3], np.int64), np.float32)
    after.ravel()[np.frombuffer(arrays[4], np.uint32)] = np.frombuffer(arrays[5], np.float32)
    return Samples(left, np.frombuffer(arrays[2], np.float32).reshape(len(left), -1), after, cost)
