"""The worker counts a query has had, as far as it still knows: from its events, or from its checkpoint.

What counts is how many workers own bins while no migration is under way; on its way from 4 workers to 8 a query has 5,
6 and 7 for a moment, and those are no decisions. There is one row for each change, so no two neighbours are equal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meander.errors import CheckpointError, InvalidOption
from meander.options import kind, listed
from meander.outlook.series import Series

_TRIES = 5


def counts_from_events(events: Iterable[Mapping[str, Any]]) -> Series:
    """Return the worker counts in a list of events, such as `query.events`.

    Only events named "workers" have them. A query remembers its last 1000 events of all kinds, and none from before
    it was started; what shall last is written to a file by `query.on_event`, see `read_counts`.
    """
    entries = listed("events", events)
    times_ms, counts = [], []
    for number, event in enumerate(entries, 1):
        if not isinstance(event, Mapping):
            raise InvalidOption(f"event {number} is {kind(event)}; events are objects with time_ms and event")
        if event.get("event") != "workers":
            continue
        when, workers = event.get("time_ms"), event.get("workers")
        if type(when) is not int or not isinstance(workers, int | list | tuple) or isinstance(workers, bool):
            raise InvalidOption(f"event {number} has no time_ms or no workers; give events as query.events has them")
        times_ms.append(when)
        counts.append(workers if isinstance(workers, int) else len(workers))
    if not counts:
        raise InvalidOption(
            f"none of the {len(entries)} events says how many workers there are; "
            "give those of a query that was rescaled"
        )
    return _changes(times_ms, counts)


def counts_from_checkpoint(path: str | os.PathLike[str]) -> Series:
    """Return the worker counts of the versions that a checkpoint still has; claims nothing, changes nothing.

    That is a short time: of old versions only the last `retain` are kept (10 unless the query was started with more)
    and up to 16 before them. With a batch each second this is half a minute. The series notes how many there were.
    """
    from meander.checkpoint.reader import Reader

    for tried in range(1, _TRIES + 1):
        log = Reader.open(path).log
        try:
            commits = log.commits(log.first_version()) if log.last else []
            break
        except CheckpointError:
            # The driver of a running query may have swept away an entry between the look and the reading.
            if tried == _TRIES:
                raise
    settled = [commit for commit in commits if "migration" not in (commit.journal or {})]
    if not settled:
        raise InvalidOption(f"{path} has no committed version without a migration under way; wait for one")
    counts = [len({worker for operator in commit.operators for worker in operator.owner}) for commit in settled]
    first, last = commits[0].version, commits[-1].version
    note = f"the checkpoint tells of versions {first} to {last} only; a longer history needs the events on file"
    return _changes([commit.time_ms for commit in settled], counts, note)


def read_counts(path: str | os.PathLike[str]) -> Series:
    """Return the worker counts from a file of events as JSON: a list, or one object per line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is not UTF-8 text").lower()
        raise InvalidOption(f"cannot read {path}: {reason}") from None
    if text.lstrip().startswith("["):
        return counts_from_events(_json(text, str(path)))
    lines = enumerate(text.splitlines(), 1)
    return counts_from_events([_json(line, f"line {number} of {path}") for number, line in lines if line.strip()])


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{where} is not JSON ({str(error).lower()}); give what query.events has") from None


def _changes(times_ms: list[int], counts: list[int], *notes: str) -> Series:
    """Only the rows in which the count is another one than before; a clock that was set back stands still."""
    changed = np.diff(np.array(counts), prepend=-1) != 0
    times_s = np.maximum.accumulate(np.array(times_ms, dtype=np.int64)) // 1000
    return Series(times_s[changed].astype("datetime64[s]"), np.array(counts, dtype=np.float64)[changed], notes)
