"""`meander inspect`: what a checkpoint holds. Without Spark."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meander.cli import show
from meander.pictures import many
from meander.types import runs

if TYPE_CHECKING:
    from meander.store.index import Index
    from meander.store.reader import Reader


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="folder or URI of the checkpoint")],
    version: Annotated[int | None, typer.Option("--version", help="as of this version instead of the last")] = None,
    format: show.FORMAT = None,
) -> None:
    """Show what a checkpoint holds: query, versions, owners, bins, bytes.

    It claims nothing and changes nothing. 'meander versions' lists what was committed, 'meander read' prints the state.

    For example

    \b
      meander inspect /data/words
    """
    from meander.store.reader import Reader

    _summary(Reader.open(checkpoint), version, show.wants_json(format))


def _summary(reader: Reader, version: int | None, as_json: bool) -> None:
    from meander.store.entries import sizes

    commit, index = reader.at(version)
    writer = reader.log.writer
    operators = []
    for operator, described in enumerate(reader.operators(version)):
        part = commit.operators[operator] if commit and operator < len(commit.operators) else None
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
        "undone": [list(each) for each in index.undone],
        "announced": reader.log.announced.to_json() if reader.log.announced else None,
        "driver": vars(writer) if writer else None,
        "migration": _migration((commit.journal if commit else None) or {}),
        "conversion": _conversion(index),
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


def _conversion(index: Index) -> dict[str, int] | None:
    """What is left of the conversion of a changed query's state, and the version before it, the way back."""
    if index.design is None or index.way_back is None:
        return None
    numbers = index.design.numbers
    left = sum(index.unconverted(operator, numbers[operator]).size for operator in range(len(index.operators)))
    return {"bins_left": int(left), "before": index.way_back}


def _control(journal: dict[str, Any]) -> dict[str, int] | None:
    """Accepted rows of the control stream that wait for their batch."""
    rows = journal.get("control", {}).get("rows")
    return {"rows": len(rows), "next_batch": min(row[0] for row in rows)} if rows else None


def _print_summary(answer: dict[str, Any]) -> None:
    console = show.console()
    console.print(f"checkpoint {answer['id']}, format {answer['format']}, {many(answer['bins'], 'bin')}", markup=False)
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
            f"version {answer['version']} of {versions}: batch {commit['batch']}{tick} at {when}, "
            f"{many(commit['rows'], 'row')} in, {commit['late']} late, {commit['dead']} dead",
            markup=False,
        )
    if undone := answer["undone"]:
        which = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in undone)
        console.print(f"undone by rollbacks: {which}", markup=False)
    if begun := answer["announced"]:
        console.print(
            f"version {begun['version']} is begun and not committed: batch {begun['batch']}, tick {begun['tick']}; the "
            "next start finishes it first",
            markup=False,
        )
    if moving := answer["migration"]:
        steps = f"{moving['steps_left']} of {many(moving['steps'], 'step')}"
        left = f"{steps} and {many(moving['bins_left'], 'bin')} are left"
        console.print(f"migration {moving['number']} is under way: {left}", markup=False)
    if conversion := answer["conversion"]:
        left = f"{many(conversion['bins_left'], 'bin')} left; version {conversion['before']}, the way back, is kept"
        console.print(f"state is being converted, {left} until then", markup=False)
    if control := answer["control"]:
        rows = f"{many(control['rows'], 'row')} of the control stream wait"
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
            owns = f"{many(len(bins), 'bin')}: {show.bins(bins)}"
            console.print(f"operator {number}, worker {worker}: {owns}", markup=False)
