"""The checkpoint: the committed versions, and the files that restore every bin. Files and JSON, no Spark, no pickle.

location     a folder with whole files and exclusive create      bitmap      sets of bins
statefile    rows of several tables, readable bin by bin         entries     the contents of a manifest
files        names, storing, reading, inline or not; seals       index       snapshot and deltas of each bin
manifest     the log: claim, commit, fencing                     retention   files that no kept version needs
identity     which query the state belongs to                    verify      every checksum and every link
reader       state and side outputs as Arrow tables
"""

from __future__ import annotations

from meander.checkpoint.entries import Commit, FileRef, OperatorCommit, SnapshotRef
from meander.checkpoint.files import Attempt, read_side, read_state, store, store_side
from meander.checkpoint.identity import Identity
from meander.checkpoint.index import Index
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.checkpoint.reader import Reader

__all__ = [
    "Attempt",
    "Commit",
    "FileRef",
    "Identity",
    "Index",
    "Location",
    "Log",
    "OperatorCommit",
    "Reader",
    "SnapshotRef",
    "read_side",
    "read_state",
    "store",
    "store_side",
]
