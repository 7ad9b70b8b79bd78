"""Only rows of bins that move wait, and go as soon as the state is there (Ding's wait buffers).

A batch is made in two versions while bins move: first the rows of all other bins, then those of the bins that move.
Event time goes on with the second one only, so that rows that wait are judged by the frontier of their own batch. The
first one's manifest notes which bins wait. A driver that is lost between the two is followed by one that reads the
note, and makes the second version when the stream brings the batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.engine.driver.batch_loop import Batch, BatchLoop
from meander.engine.driver.ports import Rows
from meander.engine.spark.exchange import bin_of
from meander.engine.spark.jobs import SparkJobs
from meander.engine.worker.messages import pack, unpack
from meander.errors import InvalidOption
from meander.migration.handle import Migration
from meander.migration.request import Request
from meander.migration.steps import NO_LIMIT
from meander.store.entries import Json
from meander.testing.inprocess import InProcessJobs
from meander_lab.modes.at_once import copy_budget, run_of

Bins = NDArray[np.bool_]

NO_HURRY_MS = 1e9
"""A time for copies that is never used up."""


class PauseBins:
    """Let each batch go on without the rows of the bins that move; those follow once the state has been read."""

    name = "pause_bins"
    forced = False

    def adapt(self, request: Request) -> Request:
        """As it is; rows are held back before the first operator, so it can be for no other."""
        if request.operators != (0,):
            raise InvalidOption("mode pause_bins holds rows back before the first operator; say operator=0")
        copy_budget(request, self.name)
        return request

    def run(self, migration: Migration) -> None:
        """Copy without a limit, and hold rows back meanwhile."""
        driver = run_of(migration).driver
        loop, readers = driver.loop, [link for links in driver.graph.links for link in links if link.origin < 0]
        if len(readers) > 1:
            raise InvalidOption("mode pause_bins holds back rows of the first operator, and others read sources too")
        with loop.lock:
            loop.use(WaitBuffer(migration=migration))
        budget = copy_budget(migration.request, self.name)
        migration.submit(replace(budget, copy_bytes=NO_LIMIT, copy_ms=NO_HURRY_MS, release_after=0))

    def ended(self, migration: Migration) -> None:
        """Hold no more rows back."""
        loop = run_of(migration).driver.loop
        with loop.lock:
            hook = loop.hook
            if isinstance(hook, WaitBuffer) and hook.migration is migration and not hook.holds_ticks:
                loop.use(None)


class WaitBuffer:
    """Holds back the rows of bins that move, from the first version of a batch to its second."""

    name = "pause_bins"

    def __init__(self, note: Json | None = None, migration: Migration | None = None) -> None:
        """Hold rows back for a migration, or only finish the batch of which there is a note."""
        self.note, self.migration = note, migration

    @property
    def holds_ticks(self) -> bool:
        """Whether rows wait."""
        return self.note is not None

    def make(self, loop: BatchLoop, batch: Batch) -> None:
        """Make one version of the batch, or two where bins move."""
        migration, moving = self.migration, self._moving(loop, batch)
        if moving is None:
            loop.advance(batch)
            return
        began_s = loop.clock.now_s()
        with same_rows(batch.rows) as kept:
            self._advance(loop, replace(batch, rows=kept, is_part=True), ~moving, {"waiting": pack(moving)})
            held_ms = (loop.clock.now_s() - began_s) * 1000
            if migration is not None:
                migration.note_hold(0, held_ms)
            self._advance(loop, replace(batch, rows=kept, tick=batch.tick + 1), moving, None)
            if migration is not None:
                migration.note_hold(loop.progress[-1].rows)

    def finish(self, loop: BatchLoop, batch: Batch) -> None:
        """Make the second version of a batch, if it is missing."""
        last = loop.log.last
        if self.note is not None and last is not None:
            bins = unpack(self.note["waiting"], loop.settings.bins)
            self._advance(loop, replace(batch, tick=last.tick + 1), bins, None)

    def _advance(self, loop: BatchLoop, batch: Batch, bins: Bins, note: Json | None) -> None:
        """Make a version of the rows of some bins; the note is committed with it, or stays what it was."""
        before, self.note = self.note, note
        try:
            loop.advance(replace(batch, rows=rows_of_bins(loop.attempts.jobs, batch.rows, bins)))
        except Exception:
            self.note = before
            raise

    def _moving(self, loop: BatchLoop, batch: Batch) -> Bins | None:
        """The bins of the first operator whose state moves in this batch; None where none does."""
        if self.note is not None:  # announced before a restart
            return unpack(self.note["waiting"], loop.settings.bins)
        protocol = loop.coordinator.protocol
        if self.migration is None or protocol.migration != self.migration.number or not protocol.steps:
            return None
        step, bins = protocol.steps[0], np.zeros(loop.settings.bins, np.bool_)
        if step.at is None or step.at <= batch.number:
            bins[[move.bin for move in step.moves if move.operator == 0]] = True
        return bins if bins.any() else None


@contextmanager
def same_rows(rows: Rows) -> Iterator[Rows]:
    """Rows that are the same for both versions, also where the source would not give them twice."""
    if isinstance(rows, pa.Table):
        yield rows
        return
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def rows_of_bins(jobs: object, rows: Rows, bins: Bins) -> Rows:
    """The rows of some bins of the first operator.

    The key is taken from the expressions for its columns: a column that one of them replaces must be computed once.
    """
    if isinstance(jobs, InProcessJobs):
        return jobs.of_bins(rows, bins)
    from pyspark.sql import functions as F

    assert isinstance(jobs, SparkJobs)
    first = jobs.flow.nodes[0]
    key = [first.inputs[0].columns.get(name, name) for name in first.operator.key.names]
    flags = jobs.gateway.array(bins.astype(int).tolist())
    return rows.where(F.get(flags, bin_of(key, bins.size)) == F.lit(1))
