"""How memory weighs against computing, by what workers really took: instead of a gamma that somebody has guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meander.measure.imbalance import sum_by_worker
from meander.measure.resources import Resources
from meander.types import WorkerId

if TYPE_CHECKING:
    from meander.control.window import Sample

MEASURED = "measured"
"""The gamma that is worked out anew for every look."""


def measured_gamma(samples: Sequence[Sample]) -> float | None:
    """Return the gamma with which load comes closest to busy time, or None where there is nothing to tell it by.

    The busy time of every worker in every batch is taken for a * memory + b * computing and something that is always
    there, none of it below 0, with the least squares; gamma is a / (a + b). So a bin's load is the time it really takes
    of its worker. By the paper's own gamma of 0.5, computing is nearly all of it: stored times queued rows of a bin are
    many more than a join that finds the rows of a key looks at.
    """
    from scipy.optimize import nnls

    parts, times = [], []
    for each in samples:
        asked = Resources(each.stored, each.queued)
        workers = sorted(set(each.owner))
        parts.append(np.column_stack([sum_by_worker(v, each.owner, workers) for v in (asked.memory, asked.computing)]))
        times += [each.busy_s.get(WorkerId(worker), 0.0) for worker in workers]
    made = np.concatenate(parts)
    scale = made.max(axis=0)
    if not (scale > 0).all() or not any(times):
        return None
    (memory, computing, _), _ = nnls(np.column_stack([made / scale, np.ones(len(made))]), np.array(times))
    memory, computing = memory / scale[0], computing / scale[1]
    return float(memory / (memory + computing)) if memory + computing > 0 else None
