"""Bringing a worker's base to the version before: by the one delta it lacks, or by reading bins from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.checkpoint.entries import FileRef
from meander.checkpoint.files import read_state
from meander.checkpoint.location import Location
from meander.errors import MeanderError
from meander.spark.messages import Control, unpacked
from meander.state.holding import Holding
from meander.state.spec import BIN


class Reload(MeanderError):
    """The base is not what the driver thinks it is; the driver must say where to read the bins."""

    fault = "reload"


def bring_forward(holding: Holding, owned: NDArray[np.bool_], control: Control, location: Location) -> None:
    """Make the holding hold exactly the bins owned, as of the version before this one.

    It depends only on what is held and on the control message, and doing it twice is doing it once.
    """
    before = control.at.version - 1
    if not holding.held.any() and holding.version != before:
        holding.reset()
    elif holding.version == before - 1:
        deltas = [read_state(location, FileRef.from_json(each)) for each in control.advance]
        holding.advance(before, _together(deltas))
    elif holding.version != before:
        holding.reset()
    missing = owned & ~holding.held
    if missing.any():
        unknown = missing & ~unpacked(control.loadable, control.bins)
        if unknown.any():
            raise Reload(f"worker {control.worker} lacks bin {int(np.flatnonzero(unknown)[0])}")
        holding.install(np.flatnonzero(missing), _parts(missing, control, location), before)
    if (holding.held & ~owned).any():
        holding.release(np.flatnonzero(holding.held & ~owned))


def _together(deltas: Sequence[Mapping[str, pa.Table]]) -> Mapping[str, pa.Table]:
    """One delta of several that speak of different bins: a large batch was taken in parts."""
    if len(deltas) <= 1:
        return deltas[0] if deltas else {}
    names = {name for delta in deltas for name in delta}
    return {name: pa.concat_tables([delta[name] for delta in deltas if name in delta]).sort_by(BIN) for name in names}


def _parts(missing: NDArray[np.bool_], control: Control, location: Location) -> Iterator[Mapping[str, pa.Table]]:
    """The snapshot and deltas of the missing bins, read one after the other in the order they were written."""
    for part in control.load:
        chosen = unpacked(part.bins, control.bins) & missing
        if chosen.any():
            yield read_state(location, FileRef.from_json(part.file), np.flatnonzero(chosen))
