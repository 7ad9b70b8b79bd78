"""Catching up: a worker's bins come to the version before, by the difference between what it holds and what it is told.

A worker compares what it holds with what a control message wants, as N-Storm compares running with assigned executors,
and the difference is what it does. Nothing else goes in, so a message that comes twice does nothing the second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.engine.worker.messages import Control
from meander.errors import Damaged, InvalidOption, MeanderError
from meander.state.holding import Holding
from meander.state.spec import BIN
from meander.store import bitmap
from meander.store.convert import converted
from meander.store.design import StateLayout
from meander.store.entries import FileRef
from meander.store.files import read_state
from meander.store.location import Location

Bins = NDArray[np.bool_]
Ids = NDArray[np.int64]

Converters = Mapping[str, Callable[[pa.Table], Any]]
"""Functions of the user's that bring the rows of a table to its newest layout, by the table's name."""

NO_CONVERTERS: Converters = {}

FEWEST_COPIES = 4
"""So many bins are read at first; then as many as there is time for at the pace so far."""


class Wanted(NamedTuple):
    """What a control message says about bins.

    Args:
        version: the version that is to be made; bins are needed as of the one before.
        owned: the bins whose rows come to this worker.
        held: the bins to have, those included; of all of them the message names the deltas of the version before.
        loadable: the bins of which the message says where they can be read.
        copied: bins to read if there is time, in this order: they will be owned later.
    """

    version: int
    owned: Bins
    held: Bins
    loadable: Bins
    copied: Ids


class Update(NamedTuple):
    """What to do, in this order; `lacking` are bins to load whose files the driver did not name."""

    reset: bool
    release: Ids
    advance: bool
    install: Ids
    lacking: Ids
    copy: Ids


def update(held: Bins, version: int, wanted: Wanted) -> Update:
    """The difference between the bins that are held, as of a version, and those that are wanted."""
    before = wanted.version - 1
    # One delta can be caught up with; anything else is read anew. A version from the future is a driver's that lost.
    reset = version not in (before, before - 1) or (version != before and not np.count_nonzero(held))
    kept = np.zeros(held.size, np.bool_) if reset else held & wanted.held
    release = np.empty(0, np.int64) if reset else (held ^ kept).nonzero()[0]
    missing = wanted.owned & ~kept
    installed = missing & wanted.loadable
    copied = wanted.copied
    return Update(
        reset=reset,
        release=release,
        advance=not reset and version == before - 1,
        install=installed.nonzero()[0],
        lacking=(missing ^ installed).nonzero()[0],
        copy=copied[(wanted.loadable & ~(kept | wanted.owned))[copied]] if copied.size else copied,
    )


class Reload(MeanderError):
    """The base is not what the driver thinks it is; the driver must say where to read the bins."""

    fault = "reload"


def catch_up(holding: Holding, control: Control, location: Location, converters: Converters = NO_CONVERTERS) -> Update:
    """Make the holding hold the bins owned, and of the others no more than it is told, as of the version before.

    It depends only on what is held and on the control message, and doing it twice is doing it once.
    """
    todo = update(holding.held, holding.version, wanted(control))
    before = control.token.version - 1
    if todo.lacking.size:
        raise Reload(f"worker {control.worker} lacks bin {int(todo.lacking[0])}")
    if todo.reset:
        holding.reset()
    if todo.release.size:
        holding.release(todo.release)
    if todo.advance:
        _advance(holding, [FileRef.from_json(each) for each in control.advance], before, location)
    if todo.install.size:
        _install(holding, todo.install, control, location, converters)
    return todo


def copy_ahead(
    holding: Holding, bins: Ids, control: Control, location: Location, converters: Converters = NO_CONVERTERS
) -> int:
    """Read bins that will be owned later, in their order, until the time is up; how many there was time for."""
    began, done, group = time.perf_counter(), 0, FEWEST_COPIES
    while done < bins.size:
        some = bins[done : done + group]
        _install(holding, some, control, location, converters)
        done += some.size
        spent_ms = (time.perf_counter() - began) * 1000
        if spent_ms >= control.copy_ms:
            break
        group = max(1, int((control.copy_ms - spent_ms) * done / max(spent_ms, 1e-3)))
    return done


def wanted(control: Control) -> Wanted:
    """What a control message says about bins."""
    copies = np.array(control.copy, np.int64)
    return Wanted(control.token.version, control.owned, control.held | control.owned, control.loadable, copies)


def _delta(location: Location, ref: FileRef, held: Bins) -> Mapping[str, pa.Table]:
    """A delta, as far as it speaks of bins that are held."""
    members = bitmap.members(ref.bins)
    mine = members[held[members]]
    return read_state(location, ref, None if mine.size == members.size else mine.tolist())


def _together(deltas: Sequence[Mapping[str, pa.Table]]) -> Mapping[str, pa.Table]:
    """One delta of several that speak of different bins: of several workers, or of a batch taken in parts."""
    if len(deltas) <= 1:
        return deltas[0] if deltas else {}
    names = {name for delta in deltas for name in delta}
    return {name: pa.concat_tables([delta[name] for delta in deltas if name in delta]).sort_by(BIN) for name in names}


def _advance(holding: Holding, refs: Sequence[FileRef], version: int, location: Location) -> None:
    """Apply the deltas of the next version; Damaged where one of them is not what the tables can take."""
    deltas = _together([_delta(location, ref, holding.held) for ref in refs])
    try:
        holding.advance(version, deltas)
    except InvalidOption as problem:
        raise _damaged(", ".join(ref.name for ref in refs), problem) from None


def _install(holding: Holding, missing: Ids, control: Control, location: Location, converters: Converters) -> None:
    """Read the missing bins, in the newest layout; Damaged where a file is not what the tables can take."""
    flags = np.zeros(control.bins, np.bool_)
    flags[missing] = True
    layouts = [StateLayout.from_json(each) for each in control.layouts]
    name = ""

    def parts() -> Iterator[Mapping[str, pa.Table]]:
        """The snapshot and deltas, read one after the other in the order they were written."""
        nonlocal name
        for part in control.load:
            chosen = part.bins & flags
            if chosen.any():
                ref = FileRef.from_json(part.file)
                name = ref.name
                yield converted(read_state(location, ref, np.flatnonzero(chosen)), layouts, ref.layout, converters)

    try:
        holding.install(missing, parts(), control.token.version - 1)
    except InvalidOption as problem:
        raise _damaged(name, problem) from None


def _damaged(name: str, problem: InvalidOption) -> Damaged:
    return Damaged(f"{name} is damaged, although its checksums are right: {problem}; restore it from a copy")
