"""Event times as microseconds, and back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.int64]


def micros(times: pa.Array) -> Words:
    """Timestamps as microseconds since 1970."""
    return np.asarray(times.cast(pa.int64()).to_numpy())


def stamps(words: Words) -> pa.Array:
    """Microseconds since 1970 as timestamps."""
    return pa.array(words, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
