"""`meander native top`: what the attached queries of this machine do, like top. Without Spark."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from meander.cli import show
from meander.control import ThresholdRules
from meander.native.observation import Observation, PartitionFigures, figure, printable
from meander.native.publish import published
from meander.options import positive

NOTHING = "no attached query on this machine for this user; in the job: attached = me.attach(query)"
LONGEST_NAME = 200
ONE_LINE: dict[str, Any] = {"no_wrap": True, "overflow": "ellipsis"}

native = typer.Typer(
    help="Watch queries of plain Spark that a job has attached to.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class TopFormat(StrEnum):
    """How `meander native top` prints observations."""

    text = "text"
    json = "json"


@native.callback()
def _alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@native.command()
def top(
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="name, id or run id of a query; by default all")
    ] = None,
    every: Annotated[float, typer.Option("--every", min=0.1, help="seconds between two looks")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="print what is there and stop, as without a terminal")] = False,
    format: Annotated[
        TopFormat, typer.Option("--format", "-f", help="text, or json: a list, printed once")
    ] = TopFormat.text,
) -> None:
    """Show which executor holds which state partitions, and what they cost.

    A job makes its queries visible, to terminals of the same machine and user, when it attaches to them:

    \b
      attached = me.attach(query)

    Then here, until Ctrl-C

    \b
      meander native top
      meander native top words --every 0.5
      meander native top words --once --format json

    The bar of an executor is the time of its partitions per batch and core. LI is the load imbalance degree: 0 is
    perfect balance. With one query, its partitions follow, the slowest first.
    """
    every_s = positive("--every", every)
    observations, lack = _look(query)
    if not observations:
        print(f"meander: {lack}", file=sys.stderr)
        raise typer.Exit(1)
    if format is TopFormat.json:
        print(json.dumps([each.to_dict() for each in observations], allow_nan=False))
    elif once or sys.stdout is None or not sys.stdout.isatty():
        print("\n\n".join(map(str, observations)))
    else:
        watch(show.console(), query, every_s)


def watch(console: Console, query: str | None, every_s: float, wait: Callable[[float], None] = time.sleep) -> None:
    """Fill the terminal with the newest observations, again and again, until Ctrl-C."""
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            observations, lack = _look(query)
            shown = (
                view(observations, time.time() * 1000, console.width, console.height) if observations else Text(lack)
            )
            live.update(shown, refresh=True)
            wait(every_s)


def _look(query: str | None) -> tuple[list[Observation], str]:
    """The observations of a query, or of all queries, and the message for when there are none."""
    every = published()
    observations = [each for each in every if query in (None, each.query, each.run)]
    names = ", ".join(dict.fromkeys(printable(each.query, LONGEST_NAME) for each in every))
    return observations, f"there is no attached query {query!r}; there are {names}" if every else NOTHING


def view(observations: Sequence[Observation], now_ms: float, width: int, height: int) -> RenderableType:
    """Observations for a terminal of that size: a headline and the executors of each, and the partitions of one.

    Where lines are few the least busy executors and the fastest partitions are left out; where they are short, hosts.
    """
    parts: list[RenderableType] = []
    # A table takes two lines more than it has rows: its head, and how many rows are shown where that is not all.
    room = max(1, height // len(observations) - 5)
    for each in observations:
        if len(observations) > 1:
            parts += [_headline(each, now_ms), _executors(each, width, room), ""]
            continue
        executors = min(len(each.executors), max(1, (room - 2) // 2, room - 2 - len(each.partitions)))
        partitions = max(1, room - 2 - executors)
        parts += [_headline(each, now_ms), "", _executors(each, width, executors), "", _partitions(each, partitions)]
    return Group(*parts)


def _headline(seen: Observation, now_ms: float) -> Text:
    line = Text(printable(seen.query, 40), style="bold", no_wrap=True, overflow="ellipsis")
    plain, behind = "not bold", "not bold red"
    if seen.batch < 0:
        line.append(": no batch has ended yet", plain)
    else:
        line.append(f": batch {seen.batch}, ", plain)
        trigger = f" of {figure(seen.trigger_ms)} ms" if seen.trigger_ms > 0 else ""
        line.append(f"{figure(seen.batch_ms)} ms{trigger}", behind if seen.behind else plain)
        line.append(f", {figure(seen.rows_per_s)} rows/s, LI {seen.imbalance():.2f}", plain)
    return line.append(f", {_age(now_ms - seen.time_ms)} ago", plain)


def _age(ms: float) -> str:
    seconds = max(0.0, ms / 1000)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.0f} h"


def _executors(seen: Observation, width: int, most: int) -> RenderableType:
    held, loads = seen.held(), seen.loads()
    cores = {each.executor: max(1, each.cores) for each in seen.executors}
    per_core = {executor: loads.get(executor, 0.0) / cores[executor] for executor in cores}
    cap = (1 + ThresholdRules.tau) * math.fsum(loads.values()) / max(1, sum(cores[executor] for executor in loads))
    full = max([*per_core.values(), cap])
    is_wide = width >= 100
    columns = ("executor", *(["host"] if is_wide else []), ">cores", ">partitions", ">rows", ">state", ">ms")
    table = show.new_table(*columns, f"┊ {1 + ThresholdRules.tau:g} x mean", **ONE_LINE)
    busiest = sorted(seen.executors, key=lambda each: -per_core[each.executor])
    for each in busiest[:most]:
        parts = held[each.executor]
        table.add_row(
            Text(printable(each.executor, 10)),
            *([Text(printable(each.host, 18))] if is_wide else []),
            figure(each.cores),
            figure(len(parts)),
            *_figures(parts),
            _bar(each.draining, len(parts), per_core[each.executor], cap, full),
        )
    return _with_rest(table, most, len(busiest), "executors")


def _bar(is_draining: bool, holds: int, per_core: float, cap: float, full: float) -> Text:
    bar = show.bar(per_core, cap, full, 16)
    if is_draining:
        return Text(bar.plain.rstrip("┊ ").replace("█", "░") if holds else "drained", style="dim")
    return bar


def _partitions(seen: Observation, most: int) -> RenderableType:
    is_named = len(seen.groups) > 1
    columns = (*(["group"] if is_named else []), ">partition", "executor", ">rows", ">state", ">ms")
    table = show.new_table(*columns, **ONE_LINE)
    for each in seen.slowest()[:most]:
        group = [Text(printable(each.group, 30))] if is_named else []
        table.add_row(*group, str(each.partition), Text(printable(each.executor or "-", 10)), *_figures([each]))
    return _with_rest(table, most, len(seen.partitions), "partitions")


def _figures(parts: Sequence[PartitionFigures]) -> list[str]:
    rows, state = sum(part.rows for part in parts), sum(part.state_bytes for part in parts)
    return [figure(rows), show.size(state), figure(math.fsum(part.ms for part in parts), 1)]


def _with_rest(table: Table, shown: int, total: int, what: str) -> RenderableType:
    return Group(table, Text(f"{shown} of {total} {what}", style="dim")) if shown < total else table
