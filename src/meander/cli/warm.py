"""`meander warm`: every kernel compiled into Numba's cache, so that the first query and the first plan do not wait."""

from __future__ import annotations

import datetime
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Annotated, Any

import typer

from meander.cli import show
from meander.warmth import is_warm, mark_warm

BINS = 16


def warm(
    processes: Annotated[int, typer.Option(min=0, help="at once; by default one per core, four at most")] = 0,
    again: Annotated[bool, typer.Option("--again", help="also where a mark says that it has been done")] = False,
    format: show.FORMAT = None,
) -> None:
    """Compile everything once, for this version and this machine: 'pip install', then this.

    What was compiled stays in the package's folder, or in the user's cache where that cannot be written, or in
    NUMBA_CACHE_DIR. In the image of an executor, call it when the image is built.
    """
    wants_json = show.wants_json(format)
    if is_warm() and not again:
        show.print_json({"compiled": 0, "loaded": 0}) if wants_json else print("everything is compiled already")
        return
    compiled = loaded = 0
    count = processes or min(4, os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")  # of a process that has loaded nothing
    with ProcessPoolExecutor(count, spawn) as pool:
        parts = as_completed([pool.submit(run, name) for name in PARTS])
        for part in show.followed("compiling", parts, len(PARTS)):
            compiled, loaded = compiled + part.result()[0], loaded + part.result()[1]
    mark_warm()
    if wants_json:
        show.print_json({"compiled": compiled, "loaded": loaded})
    else:
        print(f"{compiled} kernels compiled, {loaded} loaded")


def run(name: str) -> tuple[int, int]:
    """Run a part in this process; how many kernels it has compiled and how many loaded."""
    from meander.kernel_cache import variants

    before = len(variants)
    PARTS[name]()
    fresh = variants[before:]
    compiled = sum(each.was_compiled for each in fresh)
    return compiled, len(fresh) - compiled


# --- the parts: between them they call every kernel of a query and of a plan ----------------------


def _texts() -> None:
    import meander as me

    rows = [{"key": f"key {number}"} for number in range(50)]
    _life(me.stream(me.testing.source("key string")).key_by("key").count(), rows)


def _numbers() -> None:
    import meander as me

    rows = [{"key": number} for number in range(10_000)]  # enough for the loops that only large batches take
    _life(me.stream(me.testing.source("key long")).key_by("key").count(), rows)


def _aggregates() -> None:
    import meander as me

    columns = "key string, small int, day date, whole long, part double, name string"
    rows = [
        {"key": f"key {number % 9}", "small": 1, "day": datetime.date(2026, 1, 1), "whole": number, "part": number / 3,
         "name": f"name {number}"}
        for number in range(50)
    ]  # fmt: skip
    functions = {
        "whole": ("sum", "min", "max", "avg", "count_distinct"),
        "part": ("sum", "min", "max", "avg", "stddev"),
        "name": ("min", "max", "last", "count_distinct"),
    }
    named = {f"{function}_{column}": (function, column) for column, every in functions.items() for function in every}
    _life(me.stream(me.testing.source(columns)).key_by("key").aggregate(by="whole", n="count", **named), rows)
    _life(me.stream(me.testing.source(columns)).key_by("key", "small", "day", "name").count(), rows)


def _windows() -> None:
    import meander as me

    keyed = me.stream(me.testing.source("key string, at timestamp, part double")).key_by("key")
    rows = [{"key": f"key {number % 9}", "at": _at(number), "part": number / 3} for number in range(50)]
    _life(keyed.window("at", "10 seconds").aggregate(total=("sum", "part"), top=("max", "part")), rows)
    _life(keyed.window("at", gap="10 seconds").count(), rows)
    _life(keyed.top_k(2, by="part"), rows)


def _joins() -> None:
    import meander as me

    for type_, key in (("string", str), ("long", int)):
        left = me.stream(me.testing.source(f"key {type_}, at timestamp, a string"))
        right = me.stream(me.testing.source(f"key {type_}, at timestamp, b long"))
        with me.testing.harness(left.join(right, "key", within="10 seconds", how="full"), bins=BINS) as h:
            for _ in range(3):
                h.batch(
                    left=[{"key": key(n % 9), "at": _at(n), "a": f"{n}"} for n in range(50)],
                    right=[{"key": key(n % 9), "at": _at(n), "b": n} for n in range(50)],
                )
            h.rescale(3)
            h.end()


def _functions() -> None:
    import meander as me

    def last(key: str, rows: list[Any], state: Any) -> list[dict[str, Any]]:
        name = rows[-1].name if rows else "none any more"
        state.update(n=len(rows), name=name)
        return [{"key": key, "name": name}]

    rows = [{"key": f"key {number % 9}", "at": _at(number), "name": f"name {number}"} for number in range(50)]
    keyed = me.stream(me.testing.source("key string, at timestamp, name string")).key_by("key")
    output = "key string, name string"
    _life(keyed.map_with_state(last, "n long, name string", output, time="at", timeout="10 seconds"), rows)


def _plans() -> None:
    import numpy as np

    import meander as me

    rng = np.random.default_rng(1)
    # The more bins than fit an interpreted plan, the looser; skewed and tight ones are searched longest.
    for bins, workers, tau in ((4096, 4, 0.2), (512, 4, 0.05), (40, 8, 0.05)):
        load = rng.permutation(1 / np.arange(5, bins + 5))
        state, owner = load * rng.uniform(0.8, 1.2, bins), np.arange(bins) * workers // bins
        for planner in ("free", "ssm"):  # the one that is taken by default is compiled first
            _plan(me.Problem(load, state, owner, workers + 1, tau), planner)
        _plan(me.Problem(load, state, rng.permutation(owner), workers - 1, tau), "free")
    _plan(me.Problem([1] * 8, [1] * 8, [0, 1] * 4, 3, 0.5), "ssm")
    _plan(me.Problem([9, 9, 9, 1, 1, 1], [1, 2, 3, 1, 1, 1], [0, 0, 0, 1, 1, 1], 2, 0.0), "free")


PARTS: dict[str, Callable[[], None]] = {
    each.__name__.strip("_"): each
    for each in (_texts, _plans, _numbers, _windows, _joins, _aggregates, _functions)
}  # fmt: skip


def _life(stream: Any, rows: list[dict[str, Any]]) -> None:
    """Some versions of a stream, a rescale, a restart from the checkpoint, and the end of its time."""
    import meander as me

    with me.testing.harness(stream, bins=BINS) as h:
        for first in (0, 20, 0):
            h.batch(rows[first:])
        h.rescale(3, planner="even")
        h.restart()
        h.batch(rows)
        h.end()


def _plan(problem: Any, planner: str) -> None:
    import meander as me

    with suppress(me.Infeasible):
        me.plan(problem, planner=planner)


def _at(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=second)
