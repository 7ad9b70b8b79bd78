"""./dev simulate: the production driver under seeded faults, many seeds at once; a seed that fails can be run again.

Without --real, workers are modelled behind the same messages and the checkpoint is in memory; with it, the real worker
code runs over real state files. Ends with exit code 1 where a seed shows something that must never be.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from multiprocessing import get_context

from rich.console import Console
from rich.progress import Progress

from meander.testing.simulation import Outcome, Simulation, Violation

CHUNK = 10
YOUNG_OBJECTS = 100_000
"""So many new objects between two looks for garbage: a seed makes many, and few that need looking for."""


def prepare() -> None:
    """Make a process ready for many seeds."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def run_seed(seed: int, real: bool) -> Outcome | str:
    """What happened in one seed, or what must never be."""
    try:
        return Simulation(seed, real=real).run()
    except Violation as violation:
        return str(violation)


def main(arguments: list[str] | None = None) -> int:
    """Run seeds and print what happened."""
    parser = argparse.ArgumentParser(prog="./dev simulate", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first one (0)")
    parser.add_argument("--real", action="store_true", help="run the real worker code over real files")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after so many, and say how to go on")
    options = parser.parse_args(arguments)
    seeds = range(options.first, options.first + options.seeds)
    began = time.monotonic()
    deadline = began + 60 * options.minutes
    console = Console()
    with get_context("spawn").Pool(options.jobs, prepare) as pool:
        outcomes = pool.imap(partial(run_seed, real=options.real), seeds, chunksize=CHUNK)
        done, failed = _gather(takewhile(lambda _: time.monotonic() < deadline, outcomes), len(seeds), console)
    took_s = time.monotonic() - began
    console.print(
        f"{len(done)} seeds in {took_s:.0f} s with {options.jobs} processes; each has {_usual(done, 'versions')} "
        f"versions, {_usual(done, 'migrations')} finished migrations, {_usual(done, 'faults')} faults and "
        f"{_usual(done, 'restarts')} restarts of the driver; {len(failed)} failed"
    )
    for text in failed:
        console.print(text, markup=False)
    real = " --real" if options.real else ""
    if failed:
        console.print(f"run one again with ./dev simulate --seeds 1{real} --first SEED")
    if left := len(seeds) - len(done) - len(failed):
        console.print(f"go on with ./dev simulate --seeds {left}{real} --first {seeds.stop - left}")
    return 1 if failed else 0


def _gather(outcomes: Iterable[Outcome | str], total: int, console: Console) -> tuple[list[Outcome], list[str]]:
    done: list[Outcome] = []
    failed: list[str] = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=total)
        for outcome in outcomes:
            if isinstance(outcome, str):
                failed.append(outcome)
            else:
                done.append(outcome)
            progress.advance(task)
    return done, failed


def _usual(outcomes: list[Outcome], name: str) -> str:
    """The mean, and the least."""
    numbers = [getattr(each, name) for each in outcomes]
    return f"{sum(numbers) / max(1, len(numbers)):.1f} (at least {min(numbers, default=0)})"


if __name__ == "__main__":
    sys.exit(main())
