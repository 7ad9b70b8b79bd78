"""Looking further than one migration: what has been, what will probably come, what that will cost. No engine enters.

The past:
    series               amounts over time, and how many workers they take
    reading              a series from CSV or Parquet, or the worker counts that a query has had
    transitions          how often n workers become n'
What migrations to come will cost:
    outlook              what is known, and how a planner uses it       files         an outlook as a folder
    exact                all feasible partitionings, by value iteration; with exact_outlook, exact_kernel, partitions
    practice             prices of intervals that add up, learned by migrating; with learned and learned_kernel
    pmc                  both, computed on Spark; with pmc_exact
Planners (entry points of `meander.planners`):
    mtm                  the cheapest over this migration and those to come
    oms                  the cheapest way through a known sequence of migrations

Only the two pmc modules may import Spark.
"""

from __future__ import annotations

from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.files import read, write
from meander.outlook.learned import LearnedOutlook
from meander.outlook.outlook import Outlook
from meander.outlook.reading import counts_from_checkpoint, counts_from_events, read_counts, read_series
from meander.outlook.series import Series, migrations, worker_counts
from meander.outlook.transitions import Transitions

__all__ = [
    "ExactOutlook",
    "LearnedOutlook",
    "Outlook",
    "Series",
    "Transitions",
    "counts_from_checkpoint",
    "counts_from_events",
    "migrations",
    "read",
    "read_counts",
    "read_series",
    "worker_counts",
    "write",
]
