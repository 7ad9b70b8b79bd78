"""Another number of bins: all state written again, offline, and one entry of the log that names it.

    1 claim           every driver that still runs commits nothing more
    2 snapshots       all state in the new bins, a few bins at a time
    3 meander.json    a mark: the log says how many bins there are
    4 the log's entry    a version of its own, with the state of the one before it in the new bins
    5 finish          the new number is in meander.json, outlooks over the old bins go

Killed before 4, nothing has changed but for files that no version names. Killed after it, all has: whoever claims next
does 5. A bin is the first bits of a key's hash, so that each new bin is a part of an old one, or some old
ones together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import CheckpointError, Damaged, InvalidOption
from meander.pictures import many
from meander.route.hashing import bits_of
from meander.route.keys import KeyType
from meander.state.spec import BIN, DELETED
from meander.store import files, statefile
from meander.store.design import Design
from meander.store.entries import Commit, OperatorCommit, SnapshotRef
from meander.store.files import Attempt
from meander.store.identity import Identity
from meander.store.index import Index
from meander.store.location import Location
from meander.store.lookup import type_of
from meander.store.manifest import Log
from meander.store.reader import rebuild
from meander.store.rollback import next_number
from meander.types import WorkerId

GROUP_BYTES = 64 << 20
"""About so much state is held in memory at a time."""
INLINE_BYTES = 8192
OUTLOOKS = "outlook"

Words = NDArray[np.int64]
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Rebin:
    """A rebinning, done or planned.

    Args:
        before: how many bins there were.
        bins: how many there are.
        number: its own version number, which is above every one that a sink has heard of.
        bytes: the state that is read, deltas and snapshots, all operators together.
        groups: in so many pieces.
        written_bytes: the state as it was written; 0 where it is planned only.
    """

    before: int
    bins: int
    number: int
    bytes: int
    groups: int
    written_bytes: int = 0

    def __str__(self) -> str:
        size = f"{self.bytes:,} bytes of state in {many(self.groups, 'piece')}"
        return f"version {self.number} has {many(self.bins, 'bin')} instead of {self.before}: {size}"


def plan(log: Log, identity: Identity, bins: int) -> Rebin:
    """What a rebinning would do; raises, saying why, where it cannot be done."""
    bits_of(bins)
    last = log.last
    if last is None:
        raise InvalidOption(
            f"nothing is committed in {log.location.uri}, so there is no state to rewrite; remove it and start with "
            f"bins={bins}"
        )
    if bins == identity.bins:
        raise InvalidOption(f"the checkpoint has {many(bins, 'bin')} already")
    workers = max(len(set(operator.owner)) for operator in last.operators)
    if workers > bins:
        raise InvalidOption(
            f"{many(workers, 'worker')} cannot share {many(bins, 'bin')}; take as many bins as workers or more"
        )
    if (last.journal or {}).get("hook") or (log.announced is not None and log.announced.hook):
        raise CheckpointError(f"batch {last.batch} is made in parts; start the query, let it end, and stop it first")
    sizes = [sum(file.bytes for file in log.index.files(at)) for at in range(len(last.operators))]
    groups = sum(len(_groups(size, identity.bins, bins)) for size in sizes)
    return Rebin(identity.bins, bins, next_number(log), sum(sizes), groups)


def rebin(log: Log, identity: Identity, bins: int, time_ms: int, tell: Tell = lambda done, of: None) -> Rebin:
    """Write all state in so many bins; the log is claimed. `tell` hears how many pieces are done, and of how many."""
    planned = plan(log, identity, bins)
    last, epoch = log.last, log.epoch
    design = log.index.design or Design.first(identity.operators)
    assert last is not None
    assert epoch is not None
    operators: list[OperatorCommit] = []
    done = written = 0
    for at, operator in enumerate(last.operators):
        owner = _spread(operator.owner, bins)
        snapshots = []
        size = sum(file.bytes for file in log.index.files(at))
        for number, units in enumerate(_groups(size, identity.bins, bins)):
            covered = _within(units, bins // min(bins, identity.bins))
            old = _within(units, identity.bins // min(bins, identity.bins))
            tables = dict(_tables(log.location, log.index, at, design.operators[at], old, bins))
            file = statefile.write(tables, bins, covers=covered.tolist())
            worker = owner[int(covered[0])]
            path = Attempt(planned.number, at, worker, epoch, number).path("snapshots")
            ref = files.store(log.location, path, file, worker, INLINE_BYTES)
            snapshots.append(SnapshotRef(replace(ref, layout=design.number(at)), planned.number))
            done, written = done + 1, written + ref.bytes
            tell(done, planned.groups)
        operators.append(
            OperatorCommit(
                operator.frontier, owner, snapshots=tuple(snapshots), newest=operator.newest, seen=operator.seen
            )
        )
    replace(identity, is_rebinned=True).store(log.location)
    # What a sink is still to hear of a rollback before this, it hears of this.
    first = last.undoes[0] if log.is_owed and last.undoes is not None else last.version + 1
    undoes = (first, planned.number - 1) if first < planned.number else None
    log.rebin(
        Commit(
            planned.number, last.batch, last.tick, last.query, last.offsets, tuple(operators), time_ms=time_ms,
            journal={name: value for name, value in (last.journal or {}).items() if name not in _OF_BINS},
            undoes=undoes, rebins=identity.bins,
        )
    )  # fmt: skip
    finish(log.location)
    return replace(planned, written_bytes=written)


_OF_BINS = ("migration", "control", "hook")
"""What the journal says of single bins."""


def finish(location: Location) -> None:
    """Do what a rebinning still owes; the log is claimed."""
    identity = Identity.load(location)
    if identity is None or not identity.is_rebinned:
        return
    for folder in location.folders(OUTLOOKS):
        location.delete([f"{OUTLOOKS}/{folder}/{name}" for name in location.list(f"{OUTLOOKS}/{folder}")])
    replace(identity, is_rebinned=False).store(location)


def _spread(owner: Sequence[WorkerId], bins: int) -> tuple[WorkerId, ...]:
    """The new bins, evenly over the workers that own the old ones."""
    workers = sorted(set(owner))
    return tuple(workers[at * len(workers) // bins] for at in range(bins))


def _groups(size: int, before: int, bins: int) -> list[Words]:
    """The smallest parts that are whole bins both before and after, so many at a time as fit into memory."""
    units = np.arange(min(before, bins))
    return np.array_split(units, min(units.size, max(1, -(-size // GROUP_BYTES))))


def _within(units: Words, factor: int) -> Words:
    """The bins of these units, of which each has so many."""
    return (units[:, None] * factor + np.arange(factor)).reshape(-1)


def _tables(
    location: Location, index: Index, operator: int, described: Mapping[str, Any], old: Words, bins: int
) -> Iterator[tuple[str, pa.Table]]:
    """The state tables of an operator with the rows of some old bins, by the bins they are in now."""
    leading = len(described["key"])
    for table, columns in described["tables"].items():
        key = [(name, type_of(kind)) for name, kind in columns["key"]]
        values = [(name, type_of(kind)) for name, kind in columns["values"]]
        parts = rebuild(location, index, operator, table, [name for name, _ in key], old.tolist())
        pieces = [piece for piece in parts if piece.num_rows]
        if not pieces:
            continue
        rows = pa.concat_tables(pieces).combine_chunks()
        was, *data = rows.columns
        mine = KeyType(tuple(key[:leading])).encode(data[:leading]).bins(bins)
        if not _is_within(mine, was.to_numpy(), index.operators[operator].bins, bins):
            raise Damaged(f"table {table!r} of operator {operator} has rows in bins that are not those of their keys")
        order = pa.array(np.argsort(mine, kind="stable"))
        schema = pa.schema(
            [
                pa.field(BIN, pa.int32(), nullable=False),
                pa.field(DELETED, pa.bool_(), nullable=False),
                *(pa.field(name, kind, nullable=False) for name, kind in key),
                *(pa.field(name, kind) for name, kind in values),
            ]
        )
        new = [pa.array(mine, pa.int32()), pa.array(np.zeros(mine.size, np.bool_)), *data]
        yield table, pa.table(new, schema=schema).take(order)


def _is_within(now: NDArray[np.int32], was: Words, before: int, bins: int) -> bool:
    """Whether each row's new bin is a part of its old one, or holds it."""
    common = min(before, bins)
    return np.array_equal(now // (bins // common), was // (before // common))
