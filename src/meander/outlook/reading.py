"""Where a series comes from: a file of arrivals, or the past of a query.

Arrivals are CSV or Parquet, with or without a header, in whatever units of time. Of a query's past, in its events or
its checkpoint, what counts is how many workers own bins while no migration is under way; on its way from 4 workers to
8 a query has 5, 6 and 7 for a moment, and those are no decisions. There is one row for each change of the number.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from meander.errors import CheckpointError, InvalidOption
from meander.options import kind, listed
from meander.outlook.series import Series
from meander.pictures import many

_EPOCH = datetime.datetime(1970, 1, 1)
_SECOND = datetime.timedelta(seconds=1)
_EARLIEST_EPOCH_S = 1e8  # a smaller number is hardly a time: 1973
_LATEST = 1e20
_UNITS_PER_S = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (math.inf, 1e9))
_TIME = "write it as 2026-11-16 08:30:00 or as seconds or milliseconds since 1970"
_TRIES = 5  # to read a log that its driver sweeps meanwhile


@dataclass
class _Rows:
    """Rows of cells with the number of each, and what they are called in a sentence."""

    names: list[str]
    rows: Iterator[tuple[int, Sequence[Any]]]
    word: str


def read_series(path: str | os.PathLike[str], time: str | None = None, value: str | None = None) -> Series:
    """Read amounts over time from a CSV file, a Parquet file or a folder of Parquet files.

    Args:
        path: the file.
        time: the column with the times; by default the first that begins with one: ISO 8601, or a number that may be
            seconds, milliseconds, micro- or nanoseconds since 1970.
        value: the column with the amounts; by default the first other one that begins with a number.

    Columns without a header are called 1, 2, .. from the left. Times with an offset become UTC, others are taken as
    they are, and fractions of seconds are cut off. Rows may be in any order; amounts of the same second are summed.
    """
    table = _parquet(Path(path)) if _is_parquet(Path(path)) else _csv(Path(path))
    first = next(table.rows, None)
    if first is None:
        raise InvalidOption(f"{path} has no rows; give a series with a time and an amount in each row")
    table.names += [str(at + 1) for at in range(len(table.names), len(first[1]))]
    at, notes = _columns(path, table, first, time, value)
    seconds, amounts, is_epoch = _parsed(path, table, chain([first], table.rows), at)
    order = np.argsort(seconds, kind="stable")
    if is_epoch:
        seconds = np.floor(seconds / next(unit for below, unit in _UNITS_PER_S if np.abs(seconds).max() < below))
    times, starts = np.unique(seconds[order], return_index=True)
    return Series(times.astype(np.int64).astype("datetime64[s]"), np.add.reduceat(amounts[order], starts), notes)


def _is_parquet(path: Path) -> bool:
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _csv(path: Path) -> _Rows:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        start = file.readline()
    delimiter = max(",;\t", key=start.count)
    rows = _lines(path, delimiter)
    first = next(rows, None)
    if first is None:
        return _Rows([], iter(()), "line")
    if any(_time(cell) is not None or _number(cell) is not None for cell in first[1]):
        return _Rows([str(at + 1) for at in range(len(first[1]))], chain([first], rows), "line")
    return _Rows([cell.strip() for cell in first[1]], rows, "line")


def _lines(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        try:
            yield from ((reader.line_num, row) for row in reader if any(cell.strip() for cell in row))
        except UnicodeDecodeError:
            raise InvalidOption(f"{path} is not UTF-8 text; give CSV or Parquet") from None
        except csv.Error as error:
            raise InvalidOption(f"line {reader.line_num} of {path} is not CSV: {error}; mend it") from None


def _parquet(path: Path) -> _Rows:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        columns = [_plain(column).to_pylist() for column in table.itercolumns()]
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise InvalidOption(f"cannot read {path} as Parquet: {reason}; give a CSV or Parquet file") from None
    return _Rows(table.column_names, enumerate(zip(*columns, strict=True), 1), "row")


def _plain(column: Any) -> Any:
    """Times in UTC and in seconds: Python has no nanoseconds."""
    import pyarrow as pa

    return column.cast(pa.timestamp("s"), safe=False) if pa.types.is_timestamp(column.type) else column


def _columns(
    path: Any, table: _Rows, first: tuple[int, Sequence[Any]], time: str | None, value: str | None
) -> tuple[tuple[int, int], tuple[str, ...]]:
    """Which columns have the times and the amounts, and what to say about it."""
    line, cells = first
    where = f"{table.word} {line} of {path}"
    dates = [at for at, cell in enumerate(cells) if isinstance(_time(cell), int)]
    numbers = {at: number for at, cell in enumerate(cells) if (number := _number(cell)) is not None}
    epochs = [at for at, number in numbers.items() if number >= _EARLIEST_EPOCH_S]
    if time is not None:
        when = _named(path, table.names, time)
    elif dates or epochs:
        when = (dates or epochs)[0]
    else:
        raise InvalidOption(f"{where} has no time in it; {_TIME}, or name the column that has it")
    others = [at for at in numbers if at != when]
    if value is None and not others:
        raise InvalidOption(f"{where} has no number besides its time; name the column with the amounts")
    what = others[0] if value is None else _named(path, table.names, value)
    notes: tuple[str, ...] = ()
    if value is None and len(others) > 1:
        rest = ", ".join(table.names[at] for at in others[1:])
        notes = (f"the amounts are those of the column {table.names[what]}; others with numbers are {rest}",)
    return (when, what), notes


def _named(path: Any, names: Sequence[str], wanted: str) -> int:
    if wanted not in names:
        raise InvalidOption(f"{path} has no column {wanted!r}; its columns are {', '.join(names)}")
    return list(names).index(wanted)


def _parsed(
    path: Any, table: _Rows, rows: Iterable[tuple[int, Sequence[Any]]], at: tuple[int, int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], bool]:
    """The times as numbers, the amounts, and whether the times were numbers before."""
    times: list[int | float] = []
    amounts: list[float] = []
    kind: type | None = None
    for number, cells in rows:
        if len(cells) <= max(at):
            where, wanted = f"{table.word} {number} of {path}", max(at) + 1
            raise InvalidOption(
                f"{where} has {many(len(cells), 'column')} and needs {wanted}; mend the row or take it out"
            )
        when, amount = _time(cells[at[0]]), _number(cells[at[1]])
        kind = kind or type(when)
        if when is None or type(when) is not kind or not abs(when) < _LATEST:
            raise _refused(path, table, number, cells, at[0], f"time; {_TIME}")
        if amount is None or not 0 <= amount < math.inf:
            what = "amount; it must be a finite number of at least 0: mend the row, take it out or name another column"
            raise _refused(path, table, number, cells, at[1], what)
        times.append(when)
        amounts.append(amount)
    return np.array(times, dtype=np.float64), np.array(amounts), kind is float


def _refused(path: Any, table: _Rows, number: int, cells: Sequence[Any], at: int, what: str) -> InvalidOption:
    where = f"{table.word} {number} of {path}"
    return InvalidOption(f"{where} has {repr(cells[at])[:60]} in the column {table.names[at]} as its {what}")


def _time(cell: object) -> int | float | None:
    """A time as whole seconds since 1970, a number that may be one in another unit as a float, None for neither."""
    if isinstance(cell, str):
        text = cell.strip()
        if text[4:5] != "-":
            return _number(text)
        try:
            cell = datetime.datetime.fromisoformat(text)
            cell = cell if cell.tzinfo is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return None
    if isinstance(cell, datetime.datetime):
        return (cell - _EPOCH) // _SECOND
    if isinstance(cell, datetime.date):
        return (cell - _EPOCH.date()) // _SECOND
    return _number(cell)


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal):
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def counts_from_events(events: Iterable[Any]) -> Series:
    """Return the worker counts in a list of events: `query.events`, or what their `to_dict()` gives.

    Only events named "workers" have them. A query remembers its last 1000 events of all kinds, and none from before
    it was started; what shall last is written to a file by `query.on_event`, see `read_counts`.
    """
    entries = listed("events", events)
    times_ms, counts = [], []
    for number, entry in enumerate(entries, 1):
        event = entry.to_dict() if hasattr(entry, "to_dict") else entry
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
            f"none of the {many(len(entries), 'event')} says how many workers there are; "
            "give those of a query that was rescaled"
        )
    return _changes(times_ms, counts)


def counts_from_checkpoint(path: str | os.PathLike[str]) -> Series:
    """Return the worker counts of the versions that a checkpoint still has; claims nothing, changes nothing.

    That is a short time: of old versions only the last `retain` are kept (10 unless the query was started with more)
    and up to 16 before them. With a batch each second this is half a minute. The series notes how many there were.
    """
    from meander.store.reader import Reader

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
