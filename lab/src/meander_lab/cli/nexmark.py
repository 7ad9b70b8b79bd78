"""`meander nexmark`: the auction house's queries, over generated or given events, with migrations on the way."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from meander.cli import show
from meander.errors import InvalidOption, InvalidProblem
from meander.options import positive
from meander.progress import Tell, progress_bars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meander_lab.nexmark.running import Input, NexmarkOutcome

EVENTS = 100_000
BATCHES = 20
SHOWN = 10
LEFT_OUT = 1
"""The first batch waits for Python processes and compiled kernels."""

nexmark = typer.Typer(
    help="Run NEXMark, the auction house's standing queries, with and without migrations.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Dialect(StrEnum):
    """Whose definition of the queries."""

    flink = "flink"
    beam = "beam"


@nexmark.callback()
def _alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@nexmark.command("list")
def list_queries(
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="tell all about one: what a result row is, ties, late rows")
    ] = None,
) -> None:
    """List the queries, or tell what one asks and answers.

    Lines are those of code, without blank lines, comments and docstrings: of the query's own file, and of those that it
    shares with others. Beside them those of Megaphone's Table 1: by hand in timely dataflow, and on its operators.
    """
    from meander_lab.nexmark.queries import QUERIES, named

    console = show.console()
    if query is not None:
        definition = named(query)
        console.print(f"{definition.text}\n\ncolumns: {', '.join(definition.columns)}", markup=False, soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("query", "what it asks"):
        table.add_column(column, overflow="fold")
    for column in ("lines", "shared", "timely", "Megaphone"):
        table.add_column(column, justify="right")
    for definition in QUERIES.values():
        native, megaphone = TABLE_1.get(definition.name, ("", ""))
        table.add_row(
            definition.name, definition.title, *map(str, (definition.lines, definition.shared_lines, native, megaphone))
        )
    console.print(table)


TABLE_1 = {
    "q1": (12, 16), "q2": (14, 18), "q3": (58, 41), "q4": (128, 74),
    "q5": (73, 46), "q6": (130, 74), "q7": (55, 54), "q8": (58, 29),
}  # fmt: skip
"""Megaphone, Table 1: lines of each query in native timely dataflow, and with Megaphone's operators."""


@nexmark.command()
def run(
    query: Annotated[str, typer.Argument(help="which one; 'meander nexmark list' lists them")],
    events: Annotated[
        int | None, typer.Option("--events", min=1, help=f"how many events to generate, {EVENTS:,} unless given")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", metavar="DIR", help="events of your own: person.jsonl, auction.jsonl, bid.jsonl"),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="events per second, come what may; by default as fast as it goes")
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="SIZE[/SLIDE]", help="size of windows, as in 10s or 10s/2s")
    ] = None,
    dialect: Annotated[
        Dialect, typer.Option("--dialect", help="the queries as in Flink's SQL, or as in Beam")
    ] = Dialect.flink,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="by default one for each core")] = None,
    migrate: Annotated[
        list[str],
        typer.Option(
            "--migrate", metavar="SCHEDULE@WHEN%[:WORKERS]", help="move bins on the way; may be given several times"
        ),
    ] = [],  # noqa: B006 (Typer copies it)
    out: Annotated[str | None, typer.Option("--out", metavar="FILE", help="the result rows as JSON lines")] = None,
    batches: Annotated[int, typer.Option("--batches", min=1, help="cut the events into so many batches")] = BATCHES,
    bins: Annotated[int, typer.Option("--bins", min=1, help="number of bins, a power of two")] = 256,
    checkpoint: Annotated[str | None, typer.Option("--checkpoint", metavar="DIR", help="keep the checkpoint")] = None,
    master: Annotated[str, typer.Option("--master", help="Spark's master")] = "local[2]",
) -> None:
    """Run a query to the end of its events and write its final rows.

    Events are Beam's, the same on every machine: 10,000 a second from 2015-07-15 on, one person and three auctions to
    46 bids. With --input they are yours, in order of their dateTime. At the end of the input every window closes and
    every auction ends. The rows are sorted, so that two runs can be compared with cmp.

    A migration such as batched@50% moves a quarter of the bins when half of the input is through, and the next moves
    them back; batched@50%:4 rescales to 4 workers.

    For example

    \b
      meander nexmark run q4 --events 100000 --out results.jsonl
      meander nexmark run q5 --window 60s/10s --workers 2 --migrate batched@40% --migrate all_at_once@70%
      meander nexmark run q8 --events 600000 --rate 20000 --migrate fluid@50%:3
      meander nexmark run q1 --dialect beam
    """
    import meander as me
    from meander_lab.nexmark import results
    from meander_lab.nexmark.queries import named
    from meander_lab.nexmark.running import NexmarkRun, ScheduledMove

    definition, options = named(query), _options(window, dialect)
    moves = [ScheduledMove.of(each) for each in migrate]
    if input is not None and (events is not None or rate is not None):
        raise InvalidOption("--input brings its own events; leave --events and --rate out, or --input")
    if rate is not None:
        positive("--rate", rate)
    if input is not None and not Path(input).is_dir():
        raise InvalidProblem(f"there is no folder {input}; it holds person.jsonl, auction.jsonl and bid.jsonl")
    target = None if out is None else _writable(out)
    console = show.console()
    spark = me.session(master, app="meander-nexmark")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with progress_bars() as tell, tempfile.TemporaryDirectory(prefix="meander-events-") as folder:
            source, written = _input(spark, Path(folder), input, events or EVENTS, rate, batches, tell)
            started = NexmarkRun(definition, source, options, moves, workers, bins, tell)
            outcome = started.go(checkpoint)
    finally:
        spark.stop()
    if target is None:
        _show_rows(console, outcome)
    else:
        with target.open("w", encoding="utf-8") as file:
            results.write(outcome.rows, file, written)
    _tell(console, definition.name, outcome, target)


@nexmark.command()
def generate(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="where person.jsonl, auction.jsonl, bid.jsonl go")],
    events: Annotated[int, typer.Option("--events", min=1, help="how many events of all kinds")] = EVENTS,
) -> None:
    """Write generated events as JSON lines, one file for each kind, as 'run --input' reads them.

    For example

    \b
      meander nexmark generate events --events 100000
      meander nexmark run q7 --input events --out results.jsonl
    """
    from meander_lab.nexmark import results
    from meander_lab.nexmark.generator.config import Config
    from meander_lab.nexmark.generator.events import events as event_rows
    from meander_lab.nexmark.model import KINDS

    config, console = Config(count=events), show.console()
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidProblem(f"cannot write to {folder}: {(error.strerror or str(error)).lower()}") from None
    with progress_bars() as tell:
        for kind in KINDS:
            count = 0
            with (Path(folder) / f"{kind}.jsonl").open("w", encoding="utf-8") as file:
                for first, last in _ranges(events):
                    rows = event_rows(kind, first, last, config)
                    results.write(rows, file)
                    count += rows.num_rows
                    tell(last, events, kind)
            console.print(f"{kind}.jsonl  {count:,}", markup=False)


def _ranges(events: int, size: int = 50_000) -> Iterator[tuple[int, int]]:
    for first in range(0, events, size):
        yield first, min(events, first + size)


def _options(window: str | None, dialect: Dialect) -> Any:
    from meander.operators.times import microseconds
    from meander_lab.nexmark.queries import Options

    if window is None:
        return Options(dialect=dialect.value)
    size, _, slide = window.partition("/")
    return Options(
        window_s=microseconds("--window", size, least=1) / 1e6,
        slide_s=microseconds("--window", slide, least=1) / 1e6 if slide else None,
        dialect=dialect.value,
    )


def _writable(out: str) -> Path:
    """The file of the answer, seen to be writable before anything runs."""
    try:
        with open(out, "a", encoding="utf-8"):  # noqa: PTH123 (a name may be anything)
            return Path(out)
    except OSError as error:
        raise InvalidProblem(f"cannot write {out}: {(error.strerror or str(error)).lower()}") from None


def _input(
    spark: SparkSession, folder: Path, directory: str | None, events: int, rate: float | None, batches: int, tell: Tell
) -> tuple[Input, str]:
    from meander_lab.nexmark import files
    from meander_lab.nexmark.generator.config import Config
    from meander_lab.nexmark.running import Input
    from meander_lab.nexmark.streams import Events

    if rate is not None:
        return Input(Events.at_rate(spark, rate, events, paced=True), seconds=events / rate), "text"
    if directory is not None:
        taken = files.take(directory, folder, batches)
        return Input(Events.of_files(spark, folder), batches=batches), taken.written
    tell(0, 100, "events")
    files.write(folder, events, Config(count=events), batches)
    tell(100, 100, "events")
    return Input(Events.of_files(spark, folder), batches=batches), "text"


def _show_rows(console: Console, outcome: NexmarkOutcome) -> None:
    from meander_lab.nexmark.results import lines

    for line in lines(outcome.rows.slice(0, SHOWN)):
        console.print(line, markup=False, soft_wrap=True)
    if outcome.rows.num_rows > SHOWN:
        console.print(f".. and {outcome.rows.num_rows - SHOWN:,} more; --out FILE writes all of them", markup=False)


def _tell(console: Console, name: str, outcome: NexmarkOutcome, target: Path | None) -> None:
    where = f" in {target}" if target is not None else ""
    console.print(f"{name}: {outcome.rows.num_rows:,} result rows{where}", markup=False, soft_wrap=True)
    took = [each.took_ms for each in outcome.batches][LEFT_OUT:]
    spent = f"; a batch took {statistics.median(took):.0f} ms, at most {max(took):.0f} ms" if took else ""
    console.print(
        f"{outcome.events:,} events read in {outcome.seconds:.1f} s{spent}; {outcome.late:,} came too late",
        markup=False,
        soft_wrap=True,
    )
    for report in outcome.moves:
        ended = "cut short by the end of the input" if report.outcome == "running" else report.outcome
        console.print(
            f"{ended}: {report.bins} bins, {show.size(report.bytes)} in {report.steps} steps and "
            f"{report.duration_s:.1f} s, {len(report.workers_before)} -> {len(report.workers_after)} workers",
            markup=False,
            soft_wrap=True,
        )
