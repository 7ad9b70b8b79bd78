"""What a stream computes: one file per operator, each an operator over keyed tables.

    operator      what an operator is: rows and tables in, changed rows out; the user's class form, me.Operator
    count         rows per key                      aggregate     sum, min, max, mean, count, first, last
    dedup         the first row of each key         top_k         the best rows of each key
    window        tumbling, sliding and sessions    fold          a function over rows and state
    join          pairs of rows of two streams      custom        a user's class as an operator

    sessions, accumulators, sums, ordering, times, pairs, conform      their building blocks

Update semantics: every batch emits the keys that changed, with their new values. No answer depends on the order in
which the rows of a batch arrive. Pure: NumPy and Arrow over `state` and `route`; no Spark.
"""

from __future__ import annotations

from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.custom import Custom
from meander.operators.dedup import Dedup
from meander.operators.fold import Fold
from meander.operators.operator import BinnedOperator, Now, Operator, Output, failing_bin
from meander.operators.top_k import TopK
from meander.operators.window import window

__all__ = [
    "Aggregate",
    "BinnedOperator",
    "Count",
    "Custom",
    "Dedup",
    "Fold",
    "Now",
    "Operator",
    "Output",
    "TopK",
    "failing_bin",
    "window",
]
