"""Numbers that say how a running stream is doing, computed from what was counted.

Pure functions: arrays or numbers in, numbers out. Nothing in this package knows of problems, plans or
Spark, or decides.
"""

from __future__ import annotations

from meander.measure.load import (
    Resources,
    computing_load,
    load_imbalance,
    memory_load,
    resource,
    spread,
    sum_by_worker,
)
from meander.measure.rates import mean_sojourn_s, service_per_s, steady_mean

__all__ = [
    "Resources",
    "computing_load",
    "load_imbalance",
    "mean_sojourn_s",
    "memory_load",
    "resource",
    "service_per_s",
    "spread",
    "steady_mean",
    "sum_by_worker",
]
