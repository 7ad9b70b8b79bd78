"""A series of worker counts, replayed: what each planner would have moved, and how even it would have kept the load.

    bins         load and state of bins at each migration, measured or made up, that stay or drift
    starting     where a replay begins
    replaying    one planner through all migrations
    lookahead    what could be saved if the future were known, and what never can; with lookahead_kernel
    plots        replays side by side, as a picture

Pure Python: no Spark, no Arrow, no files but the picture. Where the counts come from is for others to know.
"""

from __future__ import annotations

from meander_lab.replay.bins import Bins
from meander_lab.replay.lookahead import Bound, clairvoyant, lower_bound
from meander_lab.replay.replaying import Migrated, Raised, Replay, replay
from meander_lab.replay.starting import balanced, smallest_tau

__all__ = [
    "Bins",
    "Bound",
    "Migrated",
    "Raised",
    "Replay",
    "balanced",
    "clairvoyant",
    "lower_bound",
    "replay",
    "smallest_tau",
]
