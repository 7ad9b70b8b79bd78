"""Folders of events: person/, auction/ and bid/, each with part-00000.parquet and so on.

Part i of each kind has the events of the same stretch of time, so a query that reads one file of each kind in a batch
sees all three kinds move on together. A file appears whole, by a rename, and is older than the next one by a second:
Spark reads the oldest file first, and some file systems tell no shorter times apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from meander.errors import InvalidOption
from meander.options import kind as kind_of
from meander.options import whole
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.generator.events import events
from meander_lab.nexmark.model import KINDS, TIME

# Spark forgets files that are a week older than the newest one, and each is a second older than the next.
MOST_PARTS = 100_000

CHUNK = 250_000
BLOCK_BYTES = 1 << 23

NEEDED = {
    "person": ("id", "dateTime"),
    "auction": ("id", "dateTime", "expires", "seller", "category"),
    "bid": ("auction", "bidder", "price", "dateTime"),
}
"""The fields that no given event can do without."""

_REPEATED = {"name", "city", "state", "channel", "url"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_ZONED = r":.*(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True)
class FolderContents:
    """What a folder was made of.

    Attributes:
        counts: how many events there are of each kind.
        first: the time of the first event; None where there is none.
        last: the time of the last event.
        written: how the given events write their times: "milliseconds" since 1970, or "text" where any is ISO 8601.
    """

    counts: dict[str, int]
    first: datetime | None
    last: datetime | None
    written: str


def write(folder: str | Path, count: int, config: Config, parts: int) -> Path:
    """Generate events into a folder and return it; `count` stands in for that of the configuration.

    Raises:
        InvalidOption: the folder has events already, or cannot be written.
    """
    parts, count = whole("parts", parts, 1, MOST_PARTS), whole("count", count, 0)
    config = replace(config, count=count)
    folder, now_s = _prepared(folder), time.time()
    for part in range(parts):
        first, last = part * count // parts, (part + 1) * count // parts
        for kind in KINDS:
            tables = (events(kind, low, min(last, low + CHUNK), config) for low in range(first, last, CHUNK))
            _put(folder, kind, part, tables, now_s - parts + part)
    return folder


def take(directory: str | Path, folder: str | Path, parts: int) -> FolderContents:
    """Sort given events by time into a folder: those in person.jsonl, auction.jsonl and bid.jsonl of a directory.

    Where a file is missing there are no events of that kind. Fields are named as the columns of `model`; others are
    ignored. Times are milliseconds since 1970, as a number or as a text of digits, or ISO 8601 texts, in UTC where
    they name no other zone. Each part has about as many events; those of the same time stay in one.

    Raises:
        InvalidOption: there is none of the files, a line is no event, or the folder has events already.
    """
    parts, directory = whole("parts", parts, 1, MOST_PARTS), Path(directory)
    there = [kind for kind in KINDS if (directory / f"{kind}.jsonl").exists()]
    if not there:
        names = ", ".join(f"{kind}.jsonl" for kind in KINDS)
        raise InvalidOption(f"{directory} has none of {names}; give a directory with at least one of them")
    read = [_read(directory / f"{kind}.jsonl", kind) if kind in there else _nothing(kind) for kind in KINDS]
    tables = {kind: table for kind, (table, _) in zip(KINDS, read, strict=True)}
    when = {kind: table["dateTime"].cast(pa.int64()).to_numpy() for kind, table in tables.items()}
    every = np.sort(np.concatenate(list(when.values())))
    inner = np.arange(1, parts)
    bounds = every[inner * every.size // parts] if every.size else np.zeros_like(inner)
    folder, now_s = _prepared(folder), time.time()
    orders = {kind: np.argsort(times, kind="stable") for kind, times in when.items()}
    ends = {
        kind: np.r_[0, np.searchsorted(times, bounds, sorter=orders[kind]), times.size] for kind, times in when.items()
    }
    sorted_ = {kind: table.take(pa.array(orders[kind])) for kind, table in tables.items()}
    for part in range(parts):
        for kind, table in sorted_.items():
            low, high = ends[kind][part : part + 2]
            _put(folder, kind, part, table.slice(low, high - low).to_batches(CHUNK), now_s - parts + part)
    return FolderContents(
        counts={kind: table.num_rows for kind, table in tables.items()},
        first=_EPOCH + timedelta(microseconds=int(every[0])) if every.size else None,
        last=_EPOCH + timedelta(microseconds=int(every[-1])) if every.size else None,
        written="text" if any(as_text for _, as_text in read) or not every.size else "milliseconds",
    )


def _prepared(folder: str | Path) -> Path:
    folder = Path(folder)
    try:
        for kind in KINDS:
            (folder / kind).mkdir(parents=True, exist_ok=True)
            if any((folder / kind).iterdir()):
                raise InvalidOption(f"{folder / kind} is not empty; give a new folder for the events")
    except OSError as error:
        raise InvalidOption(f"cannot write events to {folder}: {(error.strerror or str(error)).lower()}") from None
    return folder


def _put(folder: Path, kind: str, part: int, batches: Iterable[pa.RecordBatch], at_s: float) -> None:
    schema, path = KINDS[kind], folder / kind / f"part-{part:05d}.parquet"
    # Spark passes over names that begin with a dot.
    unfinished = path.with_name(f".{path.name}")
    repeated = [name for name in schema.names if name in _REPEATED]
    with pq.ParquetWriter(unfinished, schema, compression="none", use_dictionary=repeated) as writer:
        for batch in batches:
            writer.write_batch(batch)
    os.utime(unfinished, ns=(int(at_s) * 10**9,) * 2)
    unfinished.rename(path)


def _nothing(kind: str) -> tuple[pa.Table, bool]:
    return KINDS[kind].empty_table(), False


def _read(path: Path, kind: str) -> tuple[pa.Table, bool]:
    """The events of a file in their order, and whether a time of theirs is an ISO 8601 text."""
    if not path.is_file():
        raise InvalidOption(f"{path} is no file; it must hold one JSON object in each line")
    try:
        for time_type in (pa.int64(), pa.string()):
            table = _read_fast(path, kind, time_type)
            if table is not None:
                return table
        return _read_lines(path, kind)
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _read_fast(path: Path, kind: str, time_type: pa.DataType) -> tuple[pa.Table, bool] | None:
    """The same by Arrow, where all is well and all times are of one type; None elsewhere."""
    types = [time_type if field.type == TIME else field.type for field in KINDS[kind]]
    schema = pa.schema(zip(KINDS[kind].names, types, strict=True))
    try:
        table = pj.read_json(
            path,
            read_options=pj.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).select(schema.names)
        table.validate(full=True)
        as_text = False
        for index, field in enumerate(KINDS[kind]):
            if field.type == TIME:
                times, are_texts = _times(table.column(index).combine_chunks())
                table, as_text = table.set_column(index, field, times), as_text or are_texts
    except pa.ArrowException:
        return None
    if any(table[name].null_count for name in NEEDED[kind]):
        return None
    return table.cast(KINDS[kind]), as_text


def _times(column: pa.Array) -> tuple[pa.Array, bool]:
    """The times of a column of milliseconds or of texts, and whether any is more than digits."""
    if pa.types.is_string(column.type):
        plain = pc.match_substring_regex(column, r"^-?\d+$")
        if not pc.all(plain, min_count=0).as_py():
            zoned = pc.match_substring_regex(column, _ZONED)
            rest = pc.if_else(pc.or_(plain, zoned), None, column)
            parts = [
                _from_milliseconds(pc.if_else(plain, column, None).cast(pa.int64())),
                pc.if_else(zoned, column, None).cast(TIME),
                pc.assume_timezone(rest.cast(pa.timestamp("us")), "UTC"),
            ]
            return pc.coalesce(*parts), True
        column = column.cast(pa.int64())
    return _from_milliseconds(column), False


def _from_milliseconds(column: pa.Array) -> pa.Array:
    us = pc.multiply_checked(column, 1000)
    if not pc.all(pc.and_(pc.greater_equal(us, _YEARS_US[0]), pc.less_equal(us, _YEARS_US[1])), min_count=0).as_py():
        raise pa.ArrowInvalid("a time is beyond the year 9999")
    return us.cast(TIME)


def _read_lines(path: Path, kind: str) -> tuple[pa.Table, bool]:
    """The same line by line, which takes any events that are well formed and says what is wrong with others."""
    schema, as_text = KINDS[kind], False
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            said = error.msg.lower() if isinstance(error, json.JSONDecodeError) else str(error)
            raise InvalidOption(f"{where} is not JSON ({said}); write one JSON object in each line") from None
        if not isinstance(event, dict):
            raise InvalidOption(f"{where} is {kind_of(event)}; write one JSON object in each line")
        for field in schema:
            value = event.get(field.name)
            if value is None and field.name in NEEDED[kind]:
                raise InvalidOption(f"{where} has no {field.name}; a {kind} needs {', '.join(NEEDED[kind])}")
            if value is not None:
                value = _READERS[field.type](f"{field.name} in {where}", value)
                as_text = as_text or (field.type == TIME and _is_iso(event[field.name]))
            columns[field.name].append(value)
    return pa.table(columns, schema=schema), as_text


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that are not blank, with their numbers from 1."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError:
                raise InvalidOption(f"{path}, line {number} is not UTF-8; write the file in UTF-8") from None
            if text:
                yield number, text


def _is_iso(value: object) -> bool:
    return isinstance(value, str) and not value.removeprefix("-").isdecimal()


def _number(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise InvalidOption(f"{what} is {kind_of(value)}; it must be a whole number of 64 bits")
    return value


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidOption(f"{what} is {kind_of(value)}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{what} has half of a surrogate pair, which is no character; write both") from None
    return value


def _time_us(what: str, value: object) -> int:
    try:
        if _is_iso(value):
            read = datetime.fromisoformat(str(value))
            us = ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            us = int(value) * 1000
        else:
            raise ValueError
        if not _YEARS_US[0] <= us <= _YEARS_US[1]:
            raise OverflowError
    except OverflowError:
        raise InvalidOption(
            f"{what} is {str(value)[:40]}, which no year from 1 to 9999 has; write milliseconds"
        ) from None
    except ValueError:
        raise InvalidOption(
            f"{what} is {str(value)[:40]!r}; write milliseconds since 1970, or a text such as 2015-07-15T00:00:00.000Z"
        ) from None
    return us


_READERS: dict[pa.DataType, Callable[[str, object], Any]] = {pa.int64(): _number, pa.string(): _text, TIME: _time_us}
