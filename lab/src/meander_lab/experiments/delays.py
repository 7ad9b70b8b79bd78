"""How late results are: from the arrival of what caused them to the commit of the version they came out with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Delays:
    """The delay of each result in milliseconds, and when its cause arrived, in seconds since 1970."""

    at_s: Floats
    ms: Floats

    @classmethod
    def of(cls, results: pa.Table, ended_ms: Mapping[int, int]) -> Delays:
        """The delays of results with their version as `batch` and their arrival as `at`.

        `ended_ms` is when each version was committed; results of one that is not among them are left out.
        """
        versions = results["batch"].to_numpy()
        seen, which = np.unique(versions, return_inverse=True)
        ends = np.array([ended_ms.get(int(version), -1) for version in seen], np.float64)
        known = ends[which] >= 0 if versions.size else np.zeros(0, np.bool_)
        at_s = results["at"].cast(pa.int64()).to_numpy()[known] / 1e6 if versions.size else np.zeros(0)
        ended_s = ends[which][known] / 1e3 if versions.size else np.zeros(0)
        return cls(at_s, (ended_s - at_s) * 1e3)

    def between(self, first_s: float, last_s: float) -> Delays:
        """Those of results whose cause arrived from the first moment on and before the last."""
        these = (self.at_s >= first_s) & (self.at_s < last_s)
        return Delays(self.at_s[these], self.ms[these])

    @property
    def count(self) -> int:
        """How many results there are."""
        return int(self.ms.size)

    @property
    def mean_ms(self) -> float:
        """The mean; NaN where there is none."""
        return float(self.ms.mean()) if self.ms.size else float("nan")

    @property
    def p99_ms(self) -> float:
        """The 99th percentile; NaN where there is none."""
        return float(np.percentile(self.ms, 99)) if self.ms.size else float("nan")


def longest_gap_s(ended_ms: Sequence[int], first_s: float, last_s: float) -> float:
    """The longest time without a commit that began before `last_s` and ended after `first_s`; 0 where there is none.

    >>> longest_gap_s([1000, 2000, 5000, 5500], 1.5, 5.2)
    3.0
    """
    ends = np.sort(np.asarray(ended_ms, np.float64)) / 1e3
    gaps = [after - before for before, after in pairwise(ends) if before < last_s and after > first_s]
    return float(max(gaps, default=0.0))
