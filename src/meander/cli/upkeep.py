"""`meander versions`, `verify`, `backup`, `rollback`, `rebin`, `repair`: a checkpoint in your hands, without Spark."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from meander.cli import show
from meander.pictures import many

CHECKPOINT = Annotated[str, typer.Argument(help="folder or URI of the checkpoint")]
TAKE_OVER = Annotated[
    bool,
    typer.Option("--take-over", help="although the driver that wrote last may still run; it then commits nothing more"),
]


def versions(checkpoint: CHECKPOINT, format: show.FORMAT = None) -> None:
    """List the versions that a checkpoint still knows, and which of them one can go back to."""
    from meander import checkpoints

    every = checkpoints.checkpoint(checkpoint).versions()
    if show.wants_json(format):
        show.print_json([{**dataclasses.asdict(each), "time": each.time.isoformat()} for each in every])
        return
    columns = (">version", "committed (UTC)", "kind", ">batch", ">rows", ">workers", ">written", "go back")
    table = show.new_table(*columns, overflow="fold")
    for each in every:
        undoes = "" if each.undoes is None else f", undoes {each.undoes[0]} to {each.undoes[1]}"
        table.add_row(
            *(str(each.number), f"{each.time:%Y-%m-%d %H:%M:%S}", f"{each.kind}{undoes}"),
            *(str(count) for count in (each.batch, each.rows, len(each.workers))),
            show.size(each.written_bytes),
            "yes" if each.is_restorable else "no",
        )
    show.console().print(table)


def verify(checkpoint: CHECKPOINT, format: show.FORMAT = None) -> None:
    """Check every checksum and every link of the log; exit code 1 where something is damaged."""
    from meander import checkpoints

    findings = checkpoints.checkpoint(checkpoint).verify()
    if show.wants_json(format):
        show.print_json({"ok": not findings.damaged, **vars(findings)})
    else:
        for sentence in findings.damaged:
            print(sentence)
        entries, files = many(findings.entries, "entry", "entries"), many(findings.files, "file")
        scope = f"{entries} of the log, {files}, {show.size(findings.bytes)}"
        rest = f"; {many(findings.unnamed, 'file')} that no version names" if findings.unnamed else ""
        print(f"{'OK' if not findings.damaged else f'{len(findings.damaged)} DAMAGED'}: {scope} checked{rest}")
    if findings.damaged:
        raise typer.Exit(1)


def backup(
    checkpoint: CHECKPOINT,
    to: Annotated[str, typer.Argument(help="a folder that does not exist yet")],
    format: show.FORMAT = None,
) -> None:
    """Copy a checkpoint as of one moment, also while its query runs, and check the copy."""
    from meander import checkpoints

    copy = checkpoints.checkpoint(checkpoint).copy_to(to)
    if show.wants_json(format):
        show.print_json(dataclasses.asdict(copy))
    else:
        print(f"version {copy.version}, {many(copy.files, 'file')}, {show.size(copy.bytes)} copied to {copy.place}")


def rollback(
    checkpoint: CHECKPOINT,
    to: Annotated[int, typer.Option("--to", help="the version to go back to; 'meander versions' lists them")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
    take_over: TAKE_OVER = False,
    format: show.FORMAT = None,
) -> None:
    """Go back to an older version: state and Spark's offsets together. Stop the query first.

    The next start brings the rows again that came since. What 'me.sinks.files' shows of the undone versions is hidden.
    For other sinks see docs/go-back.md.

    For example

    \b
      meander backup /data/words /backup/words
      meander rollback /data/words --to 12 --dry-run
    """
    from meander import checkpoints

    done = checkpoints.checkpoint(checkpoint).rollback(to, dry_run=dry_run, take_over=take_over)
    if show.wants_json(format):
        show.print_json({"dry_run": dry_run, **dataclasses.asdict(done), "copies": done.copies})
    else:
        print(f"{'Would be done: ' if dry_run else ''}{done}")


def rebin(
    checkpoint: CHECKPOINT,
    bins: Annotated[int, typer.Option("--bins", help="how many bins there shall be, a power of two")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be done")] = False,
    take_over: TAKE_OVER = False,
    format: show.FORMAT = None,
) -> None:
    """Write all state again in another number of bins, more or fewer. Stop the query first.

    The bins are spread evenly over the same workers. Take a backup first: one cannot go back to a version with other
    bins.

    For example

    \b
      meander backup /data/words /backup/words
      meander rebin /data/words --bins 4096 --dry-run
    """
    from rich.console import Console
    from rich.progress import Progress

    from meander import checkpoints

    with Progress(console=Console(stderr=True), transient=True, disable=dry_run) as bar:
        task = bar.add_task("pieces of state", total=None)
        done = checkpoints.checkpoint(checkpoint).rebin(
            bins, dry_run=dry_run, take_over=take_over,
            progress=lambda count, of: bar.update(task, completed=count, total=of),
        )  # fmt: skip
    if show.wants_json(format):
        show.print_json({"dry_run": dry_run, **dataclasses.asdict(done)})
    else:
        written = f"; {show.size(done.written_bytes)} written" if done.written_bytes else ""
        print(f"{'Would be done: ' if dry_run else ''}{done}{written}")


def repair(checkpoint: CHECKPOINT, take_over: TAKE_OVER = False, format: show.FORMAT = None) -> None:
    """Mend what can be mended without losing a row; exit code 1 where something is still damaged. Stop the query first.

    A torn newest entry of the log, damaged old entries, Spark's logs after a loss of power, a rollback that was killed,
    leftovers. What is removed is copied first, to 'undone' in the checkpoint.
    """
    from meander import checkpoints

    done = checkpoints.checkpoint(checkpoint).repair(take_over=take_over)
    if show.wants_json(format):
        show.print_json(dataclasses.asdict(done))
    else:
        for sentence in (*done.mended, *done.left):
            print(sentence)
        print(f"{len(done.left)} DAMAGED" if done.left else "OK" if done.mended else "OK: there was nothing to mend")
    if done.left:
        raise typer.Exit(1)
