"""`meander read`: the state of a checkpoint, its late rows and its dead letters. Without Spark."""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from meander.cli import show
from meander.errors import CheckpointError, InvalidOption
from meander.pictures import many

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = 50
"""So many rows a table on a terminal shows, unless another limit is given."""


class SideRows(StrEnum):
    """Rows that an operator could not take."""

    late = "late"
    dead = "dead"


def read(
    checkpoint: Annotated[str, typer.Argument(help="folder or URI of the checkpoint")],
    operator: Annotated[str | None, typer.Argument(help="whose state, by name or number; all with --side")] = None,
    table: Annotated[str | None, typer.Option("--table", help="which of the operator's tables")] = None,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="CONDITION", help="only rows such as user = 'u1'; AND joins several"),
    ] = None,
    version: Annotated[int | None, typer.Option("--version", help="as of this version instead of the last")] = None,
    side: Annotated[SideRows | None, typer.Option("--side", help="late or dead rows instead of state")] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="write the rows as Parquet instead")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help=f"so many rows; by default all, on a terminal {SHOWN}")
    ] = None,
    format: show.FORMAT = None,
) -> None:
    """Print the state of an operator, or rows that it could not take.

    State is rebuilt from snapshots and deltas and needs no Spark. Rows as JSON come one object per line. A condition on
    the whole key reads the key's bin alone.

    For example

    \b
      meander read /data/words count --where "word = 'duck'"
      meander read /data/words count --out counts.parquet
      meander read /data/words --side dead
    """
    from meander.store.lookup import conditions
    from meander.store.reader import Reader

    if operator is None and side is None:
        raise InvalidOption("name an operator, whose state is to be read, or give --side late or --side dead")
    if side is not None and (table or where):
        raise InvalidOption("--table and --where are about state; give them without --side")
    reader = Reader.open(checkpoint)
    at = None if operator is None else reader.operator(operator)
    if side is not None:
        pieces = reader.side(side.value, at, version)
        title = f"{side} rows"
    else:
        assert at is not None
        name = reader.table(at, table, version)
        pieces = reader.state(at, name, version, conditions(where) if where is not None else ())
        title = f"{name} of operator {at} ({reader.name(at)})"
    if out is not None:
        print(f"{many(_write_parquet(_first(pieces, limit), out), 'row')} written to {out}")
    elif show.wants_json(format):
        for piece in _first(pieces, limit):
            for row in piece.to_pylist():
                print(json.dumps(row, default=_plain))
    else:
        _print_rows(pieces, title, limit or SHOWN)


def _first(pieces: Iterable[pa.Table], limit: int | None) -> Iterator[pa.Table]:
    """The first so many rows; what comes after them is not read."""
    left = limit
    for piece in pieces:
        yield piece if left is None else piece.slice(0, left)
        if left is not None:
            left -= piece.num_rows
            if left <= 0:
                return


def _print_rows(pieces: Iterable[pa.Table], title: str, limit: int) -> None:
    count, shown = 0, Counter[str]()
    tables: dict[str, Table] = {}
    for piece in pieces:
        columns = str(piece.schema.names)
        if columns not in tables:
            tables[columns] = Table(box=None, pad_edge=False)
            for name in piece.schema.names:
                tables[columns].add_column(name, overflow="fold")
        for row in piece.slice(0, max(0, limit - shown.total())).to_pylist():
            tables[columns].add_row(*("null" if value is None else str(_plain(value)) for value in row.values()))
            shown[columns] += 1
        count += piece.num_rows
    console = show.console()
    console.print(f"{title}: {many(count, 'row')}", markup=False)
    for table in tables.values():
        console.print(table)
    if count > shown.total():
        console.print(f"and {count - shown.total()} more; --limit shows more, --out writes all", markup=False)


def _plain(value: Any) -> Any:
    """A value in a form that JSON and people can read."""
    if isinstance(value, bytes):
        try:
            return value.decode() if value.decode().isprintable() else base64.b64encode(value).decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _write_parquet(pieces: Iterable[pa.Table], out: str) -> int:
    """Write rows to a Parquet file, whole or not at all, and return how many there are."""
    from pyarrow import parquet

    target = Path(out)
    if target.is_dir() or not target.parent.is_dir():
        raise InvalidOption(f"cannot write {out}: {'it is a folder' if target.is_dir() else 'its folder is missing'}")
    temporary, rows = target.with_name(f".{target.name}.part"), 0
    writer = None
    try:
        for piece in pieces:
            writer = writer or parquet.ParquetWriter(temporary, piece.schema)
            writer.write_table(piece.select(writer.schema.names).cast(writer.schema))
            rows += piece.num_rows
        if writer is None:
            raise CheckpointError(f"there are no rows, so {out} is not written")
        writer.close()
        temporary.replace(target)
    except (KeyError, ValueError) as error:
        raise InvalidOption(f"operators differ in their rows; name one ({error})") from None
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)
    return rows
