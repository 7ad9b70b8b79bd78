"""Leaving out a batch that can never succeed: one entry of the log, as a rollback is.

The entry is a version with Spark's offsets of that batch and the state of the version before. Spark, which brings the
batch again, hears that it is done. A sink may have heard of the batch under the next number, so that the entry has the
one after it and undoes that: no number is ever used twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.errors import CheckpointError
from meander.store import spark_logs
from meander.store.entries import Commit, OperatorCommit
from meander.store.manifest import Log
from meander.types import WorkerId


def wants_skip(log: Log, batch: int) -> bool:
    """Whether a batch is still to be left out; False where it was, refused where it is not the next one.

    Raises:
        CheckpointError: it was processed, has not begun, or something else comes before it.
    """
    last = log.last
    following = 0 if last is None else last.batch + 1
    if batch < following:
        kept = [each for each in log.commits(log.first_version()) if each.batch == batch and not each.tick]
        if kept and not kept[0].skips:
            raise CheckpointError(
                f"batch {batch} was processed, in version {kept[0].version}, and cannot be skipped any more; "
                "leave skip_batch out, or roll back to the version before it first"
            )
        return False
    if log.announced is not None or (last is not None and (last.journal or {}).get("hook")):
        raise CheckpointError(
            f"batch {batch} cannot be skipped: version {log.index.version + 1}, which is no whole batch, was begun and "
            "comes before it; start without skip_batch"
        )
    if batch > following or not spark_logs.has_begun(log.location, batch):
        which = f"the next batch is {following}"
        begun = which if batch > following else f"{which}, and Spark has not begun it"
        raise CheckpointError(f"batch {batch} cannot be skipped: {begun}; give the number that the failure names")
    return True


def skip(log: Log, batch: int, owners: Sequence[Sequence[int]], time_ms: int) -> Commit:
    """Leave out the next batch; the log is claimed, and nothing is owed. Whoever claims next tells the sink.

    Args:
        log: what is committed.
        batch: the batch.
        owners: who owns each bin, by operator, where nothing is committed yet.
        time_ms: what time it is.
    """
    last, begun = log.last, log.index.version + 1
    offsets = spark_logs.offsets_of(log.location, batch)
    query = spark_logs.query_of(log.location) if last is None else last.query
    if last is None:
        operators = tuple(OperatorCommit(None, tuple(map(WorkerId, each))) for each in owners)
    else:
        operators = tuple(
            OperatorCommit(each.frontier, each.owner, newest=each.newest, seen=each.seen) for each in last.operators
        )
    commit = Commit(
        begun + 1, batch, 0, query or "", offsets, operators, time_ms=time_ms,
        journal=None if last is None else last.journal, undoes=(begun, begun), skips=True,
    )  # fmt: skip
    log.rewind(commit, log.index)
    return commit
