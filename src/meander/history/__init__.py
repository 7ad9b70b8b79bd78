"""The past of a stream: how much arrived and how many workers there were, from files, events and checkpoints.

series       amounts over time, summed into hours, cut into what is learned from and what is judged
reading      a series from CSV or Parquet
recorded     the worker counts a query has had, from its events or its checkpoint

This room knows Arrow, not Spark, and loads Arrow only when a file needs it.
"""

from __future__ import annotations

from meander.history.reading import read_series
from meander.history.recorded import counts_from_checkpoint, counts_from_events, read_counts
from meander.history.series import Series

__all__ = ["Series", "counts_from_checkpoint", "counts_from_events", "read_counts", "read_series"]
