"""Keys as kernels take them: a word each, or a reference to a record in words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meander.route.keys import Keys
from meander.state.columns import NO_OCTETS, packed

Words = NDArray[np.int64]


@dataclass(frozen=True)
class Probe:
    """Keys to look for: their bins and hashes, their words or references, and the records these point to."""

    bins: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    words: Words
    heap: Words


def probe(keys: Keys, bins: NDArray[np.int32]) -> Probe:
    """Pack keys."""
    if keys.words is not None:
        return Probe(bins, keys.hash, keys.words, np.empty(0, np.int64))
    (references,), heap = packed([(*keys.packed, NO_OCTETS)])
    return Probe(bins, keys.hash, references, heap)
