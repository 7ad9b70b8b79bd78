"""What it costs to find a row's worker in the JVM: one array, or intervals of bins. For `./dev bench engine`.

    array     the bin indexes one array literal, as in `meander.engine.spark.exchange`
    chain     CASE WHEN bin < first end THEN ... WHEN bin < second end THEN ...
    search    the same ends, halved by nested CASEs

In `whole` every worker owns one interval; in `scattered` a quarter of the bins has moved to other workers, one by one,
so that there are many more intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meander.engine.spark.exchange import bin_of
from meander.engine.spark.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

FEW = 1000
ENOUGH_S = 0.5
"""A run that takes longer is long enough to be measured, with however few rows."""

Runs = list[tuple[int, int]]
"""End of an interval of bins, exclusive, and its worker; in order."""


def owners(bins: int, workers: int, scattered: bool) -> list[int]:
    """An assignment in whole intervals, or with a quarter of the bins moved at random."""
    owner = np.arange(bins) * workers // bins
    if scattered:
        rng = np.random.default_rng(1)
        moved = rng.choice(bins, bins // 4, replace=False)
        owner[moved] = rng.integers(0, workers, len(moved))
    return [int(each) for each in owner]


def runs_of(owner: Sequence[int]) -> Runs:
    """The intervals of bins with one owner."""
    ends = [at for at in range(1, len(owner)) if owner[at] != owner[at - 1]]
    return [(end, owner[end - 1]) for end in [*ends, len(owner)]]


def chain(runs: Runs) -> str:
    """One CASE that asks for each interval in turn."""
    if len(runs) == 1:
        return str(runs[0][1])
    branches = " ".join(f"WHEN bin < {end} THEN {worker}" for end, worker in runs[:-1])
    return f"CASE {branches} ELSE {runs[-1][1]} END"


def search(runs: Runs) -> str:
    """CASEs in one another, each of which halves the intervals that are left."""
    if len(runs) == 1:
        return str(runs[0][1])
    half = len(runs) // 2
    below, above = search(runs[:half]), search(runs[half:])
    return f"CASE WHEN bin < {runs[half - 1][0]} THEN {below} ELSE {above} END"


def worker_column(spark: SparkSession, form: str, owner: Sequence[int]) -> Column:
    """The worker of the column `bin`, found in that form."""
    from pyspark.sql import functions as F

    if form == "array":
        return F.get(Gateway(spark).array(owner), F.col("bin"))
    return F.expr((chain if form == "chain" else search)(runs_of(owner)))


class Cost(NamedTuple):
    """What a query costs for each row and thread, and what it costs however few rows there are."""

    ns: float
    fixed_ms: float


def costs(spark: SparkSession, owner: Sequence[int], forms: Sequence[str | None], most: int, rounds: int) -> list[Cost]:
    """The cost of hashing numbers to their bins and, with a form, of finding the workers, over two threads.

    The forms take turns, so that noise and what the JVM has compiled by then are the same to all.
    """

    def run(form: str | None, rows: int) -> float:
        frame = spark.range(0, rows, 1, 2).select(bin_of(["id"], len(owner)).alias("bin"))
        if form is not None:
            frame = frame.select(worker_column(spark, form, owner).alias("worker"))
        started = perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return perf_counter() - started

    rows: list[int] = []
    for form in forms:
        run(form, FEW)
        enough = FEW * 10
        while enough < most and run(form, enough) < ENOUGH_S:
            enough = min(most, enough * 10)
        rows.append(enough)
    none_s: list[list[float]] = [[] for _ in forms]
    some_s: list[list[float]] = [[] for _ in forms]
    for _ in range(rounds):
        for at, form in enumerate(forms):
            none_s[at].append(run(form, FEW))
            some_s[at].append(run(form, rows[at]))
    answer = []
    for none, some, count in zip(none_s, some_s, rows, strict=True):
        fixed_s = statistics.median(none)
        answer.append(Cost((statistics.median(some) - fixed_s) / (count - FEW) * 2e9, fixed_s * 1000))
    return answer
