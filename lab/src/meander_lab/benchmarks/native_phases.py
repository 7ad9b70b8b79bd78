"""What `./dev bench native` does to a query, phase by phase: to one that is attached to, and to its peer."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import meander as me
from meander.attached import Attached
from meander_lab.benchmarks import native_measure as m
from meander_lab.benchmarks.migrate_native import FINISH_S, UNFINISHED
from meander_lab.benchmarks.native_case import EXECUTORS, SETTLE, NativeStage, session, tell
from meander_lab.benchmarks.native_measure import NativeCase

# --- a query that is attached to -------------------------------------------------------------


def live(stage: NativeStage) -> None:
    """Watch, skew, spread, grow, and shrink in both ways."""
    some = -(-stage.case.batches // 2)
    # With and without in turn: batches get faster for a while, and that must not count for either.
    stage.steady(m.BARE, some)
    with me.attach(stage.query):
        stage.steady(m.WATCHED)
    stage.steady(m.BARE, some)
    with me.attach(stage.query) as attached:
        stage.attached = attached
        try:
            _steered(stage, attached)
        finally:
            tell("events", events=[each.to_dict() for each in attached.events])
            stage.attached = None


def _steered(stage: NativeStage, attached: Attached) -> None:
    few, more = EXECUTORS, EXECUTORS + 1
    skew = m.skewed(stage.case.partitions, attached.executors)
    stage.moving(m.MADE, lambda: attached.move(skew, schedule="all_at_once"), few)
    stage.steady(m.SKEWED)
    stage.moving(m.SPREADING, attached.spread, few)
    stage.steady(m.SPREAD)
    stage.moving(m.GROWING, lambda: attached.rescale(more), more)
    stage.steady(m.GROWN)
    stage.moving(m.DRAINING, lambda: attached.rescale(few), few)
    stage.steady(m.DRAINED)
    stage.moving(m.AGAIN, lambda: attached.rescale(more), more)
    stage.steady(m.GROWN_AGAIN)
    with stage.phase(m.LOSING) as phase:
        there = attached.executors
        if len(there) != more:
            raise RuntimeError(f"there are {len(there)} executors and not {more}, so none is let go")
        (owners,) = attached.assignment.values()
        victim, phase.moved = m.typical(owners, there)
        began = time.time()
        stage.gateway.release_executors([victim])
        stage.until_executors(few)
        phase.seconds = time.time() - began
        stage.until(max(phase.first - 1 + stage.case.batches, stage.committed + 1 + SETTLE))
    stage.steady(m.LOST)


# --- its peer --------------------------------------------------------------------------------


def peer(stage: NativeStage) -> None:
    """Stop, repartition and start, twice: stopped in the middle of a batch, and stopped while it waits for rows."""
    few = stage.case.partitions
    stage.steady(m.BEFORE)
    _repartition(stage, m.REFUSED, few * (EXECUTORS + 1) // EXECUTORS)
    stage.steady(m.ONE)
    # To be stopped between two batches, it has to have time between them.
    pause_s = 2 * stage.batch_s + 1
    stage.query.stop()
    stage.tell_batches()
    stage.start(processingTime=f"{pause_s * 1000:.0f} milliseconds")
    stage.until(stage.committed + SETTLE)
    _repartition(stage, m.QUIET, few, quiet=True)
    stage.steady(m.TWO)


def _repartition(stage: NativeStage, name: str, partitions: int, quiet: bool = False) -> None:
    def rewrite() -> None:
        stage.spark._streamingCheckpointManager.repartition(
            str(stage.folder), partitions, enforce_exactly_once_sink=True
        )

    with stage.phase(name) as phase:
        stage.until(stage.committed + 1)
        if quiet:
            stage.until_idle()
        else:
            time.sleep(stage.batch_s / 2)
        began = phase.stopped_s = time.time()
        stage.query.stop()
        stopped = finished = time.time()
        stage.tell_batches()
        try:
            rewrite()
        except Exception as problem:
            if UNFINISHED not in str(problem):
                raise
            if not stage.start(availableNow=True).awaitTermination(FINISH_S):
                raise TimeoutError(f"the interrupted batch did not end within {FINISH_S} s") from None
            finished = time.time()
            stage.tell_batches()
            rewrite()
        done = phase.started_s = time.time()
        stage.start()
        # What repartition wrote is a batch without rows.
        stage.until(stage.committed + 1)
        phase.spent_s = {"stop": stopped - began, "finish": finished - stopped, "repartition": done - finished}
        phase.seconds = time.time() - began
        stage.settle()


def carry_out(case: NativeCase) -> None:
    """Start Spark and the query, do everything, and check the counts."""
    spark = session(case)
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        os.environ["MEANDER_RUNTIME_DIR"] = str(Path(folder) / "runtime")
        stage = NativeStage(case, spark, Path(folder) / "checkpoint")
        try:
            stage.until_executors(EXECUTORS + 1)
            stage.gateway.release_executors([max(each.id for each in stage.gateway.executors())])
            stage.until_executors(EXECUTORS)
            stage.start()
            stage.warm()
            try:
                (live if case.kind == m.LIVE else peer)(stage)
            finally:
                stage.query.stop()
                stage.tell_batches()
                stage.count()
        finally:
            spark.stop()
