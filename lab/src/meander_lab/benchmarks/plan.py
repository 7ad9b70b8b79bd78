"""./dev bench plan: how long planners take, how that grows, and what a new process pays.

Every figure is the median of several rounds in this process, after warm-up, of the whole call `meander.plan(problem)`
including the plan's moves and loads. Ratios compare within the run. Ends with exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import meander

CONSOLE = Console(highlight=False)


def problem(bins: int, now: int, then: int, tau: float, seed: int = 1) -> meander.Problem:
    """Zipf loads and sizes; the present map was balanced once, and the loads of whole regions have drifted since."""
    rng = np.random.default_rng(seed)
    once = rng.permutation(1.0 / np.arange(1, bins + 1) ** 0.4)
    edges = np.searchsorted(np.cumsum(once), np.arange(1, now) * once.sum() / now)
    owner = np.searchsorted(edges, np.arange(bins), side="right")
    regions = rng.lognormal(0.0, 0.4, now + 1)
    load = once * np.interp(np.linspace(0, now, bins), np.arange(now + 1), regions) * rng.lognormal(0.0, 0.1, bins)
    state = (once * rng.uniform(0.5, 1.5, bins) * 2**24).astype(np.int64)
    return meander.Problem(load, state, owner, then, tau)


def median_ms(call: Callable[[], object], rounds: int, least_s: float = 0.2) -> float:
    """Median over rounds; a round repeats short calls so that the clock's grain does not matter."""
    call()
    started = perf_counter()
    call()
    repeats = max(1, int(least_s / rounds / max(perf_counter() - started, 1e-6)))
    times = []
    for _ in range(rounds):
        started = perf_counter()
        for _ in range(repeats):
            call()
        times.append((perf_counter() - started) / repeats)
    return statistics.median(times) * 1e3


def new_process_s(bins: int, workers: int) -> float:
    """Seconds for `import meander` and a first ssm plan in a new process that has imported NumPy."""
    ask = (
        "import numpy, time; t = time.perf_counter(); import meander as me;"
        f"owner = [j * {workers} // {bins} for j in range({bins})];"
        f"me.plan(me.Problem([1] * {bins}, [1] * {bins}, owner, {workers} - 1, 1.0)); print(time.perf_counter() - t)"
    )
    run = [sys.executable, "-c", ask]
    times = [float(subprocess.run(run, capture_output=True, text=True, check=True).stdout) for _ in range(6)]
    return statistics.median(times[1:])


def main() -> int:
    """Measure, print one table, and say which targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per figure (default 15)")
    rounds = parser.parse_args().rounds

    ssm_cases = [
        (64, 16, 15, 1.2),
        (64, 16, 15, 0.6),
        (64, 16, 17, 0.6),
        (1024, 64, 65, 0.2),
        (2048, 64, 65, 0.2),
        (4096, 64, 65, 0.2),
        (8192, 64, 65, 0.2),
        (4096, 64, 63, 0.2),
        (2048, 64, 63, 1.2),
        (4096, 64, 63, 1.2),
    ]
    others = ["free", "annealing", "even", "consistent_hash", "redist"]
    table = Table(title="plan: median of the whole call", title_justify="left", box=None, pad_edge=False)
    for column in ("planner", "bins", "workers", "tau", "ms", "of state moved", "heaviest load / cap"):
        table.add_column(column, justify="left" if column == "planner" else "right")
    took: dict[tuple[str, int, int, int, float], float] = {}
    asks = [("ssm", *case) for case in ssm_cases]
    asks += [(name, 4096, 64, 65, 0.2) for name in others]
    with Progress(console=CONSOLE, transient=True) as progress:
        task = progress.add_task("measuring", total=len(asks) + 2)
        for name, bins, now, then, tau in asks:
            case = problem(bins, now, then, tau)
            ms = median_ms(lambda name=name, case=case: meander.plan(case, name), rounds if name == "ssm" else 3)
            answer = meander.plan(case, name)
            meander.check(case, answer, cap=meander.planners()[name].keeps_cap)
            took[name, bins, now, then, tau] = ms
            share = answer.cost / (answer.cost + answer.gain)
            fullest = max(answer.loads[w] / answer.caps[w] for w in answer.workers)
            figures = f"{tau:g}", f"{ms:.3f}", f"{share:.2%}", f"{fullest:.2f}"
            table.add_row(name, str(bins), f"{now} -> {then}", *figures)
            progress.advance(task)
        growth = _growth(rounds, 65, 0.2), _growth(rounds, 63, 1.2)
        progress.advance(task, 2)
        light, full = new_process_s(64, 16), new_process_s(4096, 64)
    CONSOLE.print(table)
    CONSOLE.print()
    return _targets(
        [
            ("ssm, 64 bins, 16 -> 15, tau 1.2: ms", took["ssm", 64, 16, 15, 1.2], 0.2),
            ("ssm, 64 bins, 16 -> 15, tau 0.6: ms", took["ssm", 64, 16, 15, 0.6], 0.2),
            ("ssm, 4096 bins, 64 -> 65, tau 0.2: ms", took["ssm", 4096, 64, 65, 0.2], 20.0),
            ("ssm, 4096 bins, 64 -> 63, tau 1.2: ms", took["ssm", 4096, 64, 63, 1.2], 20.0),
            ("ssm, 64 -> 65, tau 0.2: time at 4096 bins / time at 2048", growth[0], 2.5),
            ("ssm, 64 -> 63, tau 1.2: time at 4096 bins / time at 2048", growth[1], 2.5),
            ("free, 4096 bins, 64 -> 65, tau 0.2: ms", took["free", 4096, 64, 65, 0.2], 1000.0),
            ("a new process: import and first plan of 64 bins (interpreted), s", light, 1.0),
            ("a new process: import and first plan of 4096 bins (loads Numba's cache), s", full, 1.0),
        ]
    )


def _growth(rounds: int, workers: int, tau: float) -> float:
    """How ssm's time grows from 2048 to 4096 bins: the median of ratios taken in turn, so that noise hits both."""
    small, large = problem(2048, 64, workers, tau), problem(4096, 64, workers, tau)
    ratios = []
    for _ in range(rounds):
        ratios.append(median_ms(lambda: meander.plan(large), 3, 0.05) / median_ms(lambda: meander.plan(small), 3, 0.05))
    return statistics.median(ratios)


def _targets(rows: list[tuple[str, float, float]]) -> int:
    table = Table(title="targets", title_justify="left", box=None, pad_edge=False)
    for column in ("what", "measured", "at most", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, measured, limit in rows:
        table.add_row(what, f"{measured:.3g}", f"{limit:g}", "met" if measured <= limit else "[red]MISSED[/]")
    CONSOLE.print(table)
    return int(any(measured > limit for _, measured, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
