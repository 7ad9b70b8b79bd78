"""Looking ahead: what migrations to come will cost, by the partitioning they start from. Pure; Spark may not enter.

Reading order: `outlook` (what is known, and how a planner uses it), then the two kinds of it:

    exact           all feasible partitionings, by value iteration; with exact_outlook and exact_kernel
    practice        prices of intervals that add up, learned by migrating; with learned (the outlook) and learned_kernel

and `files` (an outlook as a folder of Parquet files). The Spark forms are `spark.pmc`, with pmc_exact and pmc_folder.
"""

from meander.planning.ahead.exact_outlook import ExactOutlook
from meander.planning.ahead.files import read, write
from meander.planning.ahead.learned import LearnedOutlook
from meander.planning.ahead.outlook import Outlook

__all__ = ["ExactOutlook", "LearnedOutlook", "Outlook", "read", "write"]
