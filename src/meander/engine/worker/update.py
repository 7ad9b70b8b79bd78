"""What a worker does to the bins it holds when a control message comes (N-Storm's thread-level update).

It compares what it holds with what it is told to hold, as N-Storm compares running with assigned executors, and the
difference is what it does. Nothing else goes in, so a message that comes twice does nothing the second time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bins = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Wanted:
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
    copied: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Update:
    """What to do, in this order; `lacking` are bins to load whose files the driver did not name."""

    reset: bool
    release: NDArray[np.int64]
    advance: bool
    install: NDArray[np.int64]
    lacking: NDArray[np.int64]
    copy: NDArray[np.int64]


def update(held: Bins, version: int, wanted: Wanted) -> Update:
    """The difference between the bins that are held, as of a version, and those that are wanted."""
    before = wanted.version - 1
    # One delta can be caught up with; anything else is read anew. A version from the future is a driver's that lost.
    reset = version not in (before, before - 1) or (version != before and not held.any())
    kept = np.zeros_like(held) if reset else held & wanted.held
    release = np.empty(0, np.int64) if reset else np.flatnonzero(held & ~wanted.held)
    missing = wanted.owned & ~kept
    copied = wanted.copied
    return Update(
        reset=reset,
        release=release,
        advance=not reset and version == before - 1,
        install=np.flatnonzero(missing & wanted.loadable),
        lacking=np.flatnonzero(missing & ~wanted.loadable),
        copy=copied[~kept[copied] & ~wanted.owned[copied] & wanted.loadable[copied]],
    )
