"""Plans, schedules and loads as tables and bars for a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from meander.pictures import many
from meander.planning import Plan
from meander.scheduling import Step
from meander.types import Bytes, WorkerId, runs

Each = TypeVar("Each")


class AnswerFormat(StrEnum):
    """How a command prints its answer."""

    json = "json"
    table = "table"


FORMAT = Annotated[
    AnswerFormat | None,
    typer.Option("--format", "-f", help="table or json; by default a table on a terminal, else JSON"),
]


def wants_json(choice: AnswerFormat | None) -> bool:
    """Whether an answer is printed as JSON: as it was chosen, else where standard output is no terminal."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return choice is AnswerFormat.json or (choice is None and not on_terminal)


def print_json(value: Any) -> None:
    """Print an answer as one line of JSON."""
    print(json.dumps(value, allow_nan=False))


def console() -> Console:
    """A console on standard output; plain text where that is not a terminal."""
    return Console(highlight=False)


def followed(what: str, steps: Iterable[Each], total: int) -> Iterable[Each]:
    """The steps one after the other, with a bar on standard error where that is a terminal."""
    errors = Console(stderr=True)
    yield from track(steps, what, total, console=errors, transient=True, disable=not errors.is_terminal)


def new_table(*columns: str, title: str = "", **style: Any) -> Table:
    """An empty table with these columns; one whose name begins with > is aligned to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for each in columns:
        table.add_column(each.removeprefix(">"), justify="right" if each.startswith(">") else "left", **style)
    return table


def size(count: Bytes) -> str:
    """Bytes for people: 1536 -> 1.5 KiB."""
    if count < 1024:
        return f"{count:g} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
    raise AssertionError("unreachable")


def bar(value: float, limit: float, full: float, width: int = 32) -> Text:
    """A bar for a load with a mark at its cap; red where the load is above it."""
    scale = width / full if full > 0 else 0.0
    filled, mark = round(value * scale), min(width, round(limit * scale))
    colour = "red" if value > limit * (1 + 1e-9) else "green"
    text = Text("█" * filled, style=colour)
    text.append(" " * max(0, mark - filled))
    if mark >= filled:
        text.append("┊", style="bold")
    return text


def load_table(loads: Mapping[WorkerId, float], caps: Mapping[WorkerId, float], title: str = "") -> Table:
    """Each worker's load as a number and a bar against its cap."""
    table = new_table(">worker", ">load", "┊ is the cap", title=title)
    full = max([*loads.values(), *caps.values()], default=0.0)
    for worker, load in loads.items():
        table.add_row(str(worker), f"{load:.4g}", bar(load, caps[worker], full))
    return table


def bins(owned: Sequence[int]) -> str:
    """Bin numbers, neighbours joined: 0-3, 7."""
    if not owned:
        return "none"
    steps = [WorkerId(bin_ - place) for place, bin_ in enumerate(owned)]
    parts = [
        f"{owned[run.start]}" if run.stop - run.start == 1 else f"{owned[run.start]}-{owned[run.stop - 1]}"
        for run in runs(steps)
    ]
    shown = ", ".join(parts[:8])
    return shown if len(parts) <= 8 else f"{shown}, and {len(parts) - 8} more runs"


def plan_table(plan: Plan) -> Table:
    """A plan: for each worker its load, what it gets and what it gives."""
    total = plan.cost + plan.gain
    share = f", {plan.cost / total:.1%} of the state" if total else ""
    moves = f"{many(len(plan.moves), 'move')}, {size(plan.cost)}{share}"
    title = f"{plan.planner}: {moves}, planned in {plan.elapsed_ms:.3g} ms"
    title = "\n".join([title, *plan.notes])
    table = new_table(">worker", ">load", ">cap", "┊ is the cap", "bins in", "bins out", title=title)
    everyone = sorted({*plan.workers, *plan.before})
    full = max([*plan.loads.values(), *plan.caps.values()], default=0.0)
    for worker in everyone:
        arriving = bins([move.bin for move in plan.moves if move.target == worker])
        leaving = bins([move.bin for move in plan.moves if move.source == worker])
        if worker in plan.loads:
            load, cap = plan.loads[worker], plan.caps[worker]
            table.add_row(str(worker), f"{load:.4g}", f"{cap:.4g}", bar(load, cap, full), arriving, leaving)
        else:
            table.add_row(str(worker), "-", "-", Text("leaves", style="dim"), arriving, leaving)
    return table


def schedule_table(name: str, steps: Sequence[Step]) -> Table:
    """A schedule: for each step its moves, bytes and who is busy."""
    busy = [step for step in steps if step]
    title = f"{name}: {many(sum(map(len, steps)), 'move')} in {many(len(busy), 'step')}"
    if len(steps) > len(busy):
        title += f" over {many(len(steps), 'batch', 'batches')}"
    table = new_table(">batch", ">moves", ">bytes", "source -> target: bins", title=title)
    shown = 40
    for batch, step in enumerate(steps[:shown]):
        pairs: dict[tuple[int, int], list[int]] = {}
        for move in step:
            pairs.setdefault((move.source, move.target), []).append(move.bin)
        text = "; ".join(f"{source} -> {target}: {bins(moved)}" for (source, target), moved in pairs.items())
        table.add_row(f"+{batch}", str(len(step)), size(sum(move.bytes for move in step)), text or "(a gap)")
    if len(steps) > shown:
        table.add_row(
            "...", "", "", f"and {many(len(steps) - shown, 'more batch', 'more batches')}; --format json has all"
        )
    return table
