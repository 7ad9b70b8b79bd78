"""`meander inspect`: what a checkpoint holds, whether it is whole, and its state as tables. Without Spark."""

from __future__ import annotations

import base64
import datetime
import json
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from meander.cli import show
from meander.errors import CheckpointError, InvalidOption
from meander.types import runs

if TYPE_CHECKING:
    import pyarrow as pa

    from meander.checkpoint.location import Location
    from meander.checkpoint.reader import Reader


class SideRows(StrEnum):
    """Rows that an operator could not take."""

    late = "late"
    dead = "dead"


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="folder or URI of the checkpoint")],
    verify: Annotated[bool, typer.Option("--verify", help="check every checksum and every link of the log")] = False,
    read: Annotated[
        str | None, typer.Option("--read", metavar="OPERATOR", help="print the state of an operator, by name or number")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="which of the operator's tables")] = None,
    version: Annotated[int | None, typer.Option("--version", help="as of this version instead of the last")] = None,
    side: Annotated[
        SideRows | None, typer.Option("--side", help="print late or dead rows; with --read of one operator")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="write the rows as Parquet instead")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="how many rows a table on a terminal shows")] = 50,
    format: show.FORMAT = None,
) -> None:
    """Show what a checkpoint holds: query, versions, owners, bins, bytes.

    State is rebuilt from snapshots and deltas and needs no Spark. Rows as JSON come one object per line.

    For example

    \b
      meander inspect /data/words --verify
      meander inspect /data/words --read count --out counts.parquet
    """
    if verify and (read or side or out or table or version is not None):
        raise InvalidOption(
            "--verify checks all of the checkpoint; give it without --read, --side, --version and --out"
        )
    if (out or table) and not (read or side):
        raise InvalidOption("--out and --table go with --read OPERATOR or --side")
    from meander.checkpoint.reader import Reader, place_of

    as_json = show.wants_json(format)
    if verify:
        _verify(place_of(checkpoint), as_json)
        return
    reader = Reader.open(checkpoint)
    if read is None and side is None:
        _summary(reader, version, as_json)
        return
    operator = None if read is None else reader.operator(read)
    if side is not None:
        pieces = reader.side(side.value, operator, version)
        title = f"{side} rows"
    else:
        assert operator is not None
        name = reader.table(operator, table)
        pieces = reader.state(operator, name, version)
        title = f"{name} of operator {operator} ({reader.name(operator)})"
    if out is not None:
        print(f"{_write_parquet(pieces, out)} rows written to {out}")
    elif as_json:
        for piece in pieces:
            for row in piece.to_pylist():
                print(json.dumps(row, default=_plain))
    else:
        _print_rows(pieces, title, limit)


def _verify(location: Location, as_json: bool) -> None:
    from meander.checkpoint.verify import verify

    report = verify(location)
    if as_json:
        print(json.dumps({"ok": not report.damaged, **vars(report)}))
    else:
        for sentence in report.damaged:
            print(sentence)
        scope = f"{report.entries} entries of the log, {report.files} files, {show.size(report.bytes)}"
        rest = f"; {report.unnamed} files that no version names" if report.unnamed else ""
        print(f"{'OK' if not report.damaged else f'{len(report.damaged)} DAMAGED'}: {scope} checked{rest}")
    if report.damaged:
        raise typer.Exit(1)


def _summary(reader: Reader, version: int | None, as_json: bool) -> None:
    from meander.checkpoint.entries import sizes

    commit, index = reader.at(version)
    writer = reader.log.writer
    operators = []
    for operator, described in enumerate(reader.identity.operators):
        part = commit.operators[operator] if commit else None
        rows, stored = sizes(index.files(operator)) if commit else (0, 0)
        chains = index.chains(operator) if commit else None
        operators.append(
            {
                **described,
                "frontier_us": part.frontier if part else None,
                "owner": [list(run) for run in runs(part.owner)] if part else [],
                "files": len(index.files(operator)) if commit else 0,
                "stored_rows": rows,
                "stored_bytes": stored,
                "longest_chain": index.longest_chain(operator) if commit else 0,
                "mean_chain": round(float(chains.mean()), 2) if chains is not None else 0.0,
            }
        )
    answer = {
        "checkpoint": reader.location.uri,
        "id": reader.identity.id,
        "format": reader.identity.format,
        "bins": reader.identity.bins,
        "workers": sorted({worker for part in commit.operators for worker in part.owner}) if commit else [],
        "first_version": reader.log.first_version(),
        "version": commit.version if commit else -1,
        "last_version": reader.log.last.version if reader.log.last else -1,
        "commit": {
            name: getattr(commit, name) for name in ("batch", "tick", "query", "rows", "late", "dead", "time_ms")
        }
        if commit
        else None,
        "announced": reader.log.announced.to_json() if reader.log.announced else None,
        "driver": vars(writer) if writer else None,
        "migration": _migration((commit.journal if commit else None) or {}),
        "control": _control((commit.journal if commit else None) or {}),
        "operators": operators,
    }
    if as_json:
        print(json.dumps(answer))
    else:
        _print_summary(answer)


def _migration(journal: dict[str, Any]) -> dict[str, int] | None:
    """What is left of a migration that was under way; a driver that starts goes on with it."""
    left = journal.get("migration")
    if left is None or not left["steps"]:  # all have flipped, and only old copies are to be released
        return None
    bins = sum(len(step["shifts"]) for step in left["steps"])
    return {"number": left["migration"], "steps": left["total"], "steps_left": len(left["steps"]), "bins_left": bins}


def _control(journal: dict[str, Any]) -> dict[str, int] | None:
    """Accepted rows of the control stream that wait for their batch."""
    rows = journal.get("control", {}).get("rows")
    return {"rows": len(rows), "next_batch": min(row[0] for row in rows)} if rows else None


def _print_summary(answer: dict[str, Any]) -> None:
    console = show.console()
    console.print(f"checkpoint {answer['id']}, format {answer['format']}, {answer['bins']} bins", markup=False)
    commit, writer = answer["commit"], answer["driver"]
    if writer:
        console.print(f"driver: epoch {writer['epoch']}, {writer['host']}, pid {writer['pid']}", markup=False)
    if commit is None:
        console.print("nothing is committed yet")
    else:
        when = datetime.datetime.fromtimestamp(commit["time_ms"] / 1000, datetime.UTC).isoformat(" ", "seconds")
        tick = f", tick {commit['tick']}" if commit["tick"] else ""
        versions = f"{answer['first_version']} to {answer['last_version']}"
        console.print(
            f"version {answer['version']} of {versions}: batch {commit['batch']}{tick} at {when}, {commit['rows']} "
            f"rows in, {commit['late']} late, {commit['dead']} dead",
            markup=False,
        )
    if begun := answer["announced"]:
        console.print(
            f"version {begun['version']} is begun and not committed: batch {begun['batch']}, tick {begun['tick']}; the "
            "next start finishes it first",
            markup=False,
        )
    if moving := answer["migration"]:
        console.print(
            f"migration {moving['number']} is under way: {moving['steps_left']} of {moving['steps']} steps and "
            f"{moving['bins_left']} bins are left",
            markup=False,
        )
    if control := answer["control"]:
        rows = f"{control['rows']} rows of the control stream wait"
        console.print(f"{rows}, the first for batch {control['next_batch']}", markup=False)
    columns = ("operator", "key", "tables", ">files", ">stored rows", ">stored", ">longest chain", ">mean")
    table = show.new_table(*columns, overflow="fold")
    for number, operator in enumerate(answer["operators"]):
        table.add_row(
            f"{number} {operator.get('operator')}",
            ", ".join(f"{name} {kind}" for name, kind in operator.get("key", [])),
            ", ".join(operator.get("tables", {})),
            str(operator["files"]),
            str(operator["stored_rows"]),
            show.size(operator["stored_bytes"]),
            str(operator["longest_chain"]),
            f"{operator['mean_chain']:g}",
        )
    console.print(table)
    for number, operator in enumerate(answer["operators"]):
        owned: dict[int, list[int]] = {}
        for start, stop, worker in operator["owner"]:
            owned.setdefault(worker, []).extend(range(start, stop))
        for worker, bins in sorted(owned.items()):
            console.print(f"operator {number}, worker {worker}: {len(bins)} bins: {show.bins(bins)}", markup=False)


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
    console.print(f"{title}: {count} rows", markup=False)
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
        raise InvalidOption(f"operators differ in their rows; choose one with --read OPERATOR ({error})") from None
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)
    return rows
