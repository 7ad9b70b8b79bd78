"""`python -m fault.matrix`: run the cells that have not held yet, and print the table.

--minutes N          begin no cell after so many minutes; the next call goes on
--cells SEED/N       of the cells that have held before as many as fit N minutes, chosen by a seed
--only TEXT          cells whose fault / phase / operator / sink has this text, or that of another --only
--lane K/N           of the open cells those of every Nth fault, from the Kth: N of these may run beside one another
--times N            each cell so many times, all of them before any a second time
--local              only faults of drivers, whose executors are threads: for many runs in little time
--show               print the table of the results that are there, and run nothing
--results FILE       where results are kept
--folder FOLDER      where cells work; what belongs to a broken one stays there
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from fault.matrix.cell import Cell, Engine, play
from fault.matrix.faults import CLUSTER, LOCAL, Setup
from fault.matrix.table import FAULTS, Results, as_markdown, cells, left_out

MARK = "<!-- table -->"
RESULTS = Path(__file__).parent / "results.jsonl"


def main() -> int:
    options = _options()
    results = Results(options.results)
    if not options.show:
        chosen, minutes = _chosen(options, results), options.minutes
        if options.cells:
            seed, _, minutes = options.cells.partition("/")
            print(f"cells in the order of seed {seed}: --cells {options.cells} runs them again", flush=True)
            for fault, reason in left_out():
                print(f"left out: {fault}: {reason}", flush=True)
            chosen = Results(RESULTS).held_cells()
            random.Random(seed).shuffle(chosen)
        folder = Path(options.folder or tempfile.mkdtemp(prefix="matrix-"))
        if options.local:
            chosen = [each for each in chosen if FAULTS[each.fault].is_of_driver]
        master = LOCAL if options.local else CLUSTER
        broken = _run(chosen * options.times, results, float(minutes), folder, master)
    table = as_markdown(results.all())
    print(table)
    if options.page is not None:
        text, mark, _ = options.page.read_text().partition(MARK)
        options.page.write_text(f"{text}{mark}\n\n{table}")
    return 0 if options.show else int(broken > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fault.matrix", description="break queries on purpose")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--cells")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--lane", default="1/1")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--folder")
    return parser.parse_args()


def _chosen(options: argparse.Namespace, results: Results) -> list[Cell]:
    if not options.only:
        lane, _, lanes = options.lane.partition("/")
        mine = list(FAULTS)[int(lane) - 1 :: int(lanes)]
        return [each for each in results.open_cells() if each.fault in mine]
    return [each for each in cells() if any(text in str(each) for text in options.only)]


def _run(chosen: list[Cell], results: Results, minutes: float, folder: Path, master: str) -> int:
    """Run cells one after the other, and return how many were broken."""
    deadline, engine, broken = time.monotonic() + 60 * minutes, None, 0
    for cell in chosen:
        if time.monotonic() >= deadline:
            break
        seed = time.time_ns() % 1_000_000_000
        setup = replace(FAULTS[cell.fault].setup, master=master)
        if engine is not None and engine.setup != setup:
            engine.end()
            engine = None
        engine = engine or _engine(folder / f"driver-{seed}", setup)
        result, engine = play(cell, FAULTS[cell.fault], folder, engine, seed)
        results.add(cell, {**result, "seed": seed})
        broken += result["result"] != "held"
        print(f"{result['result']:6} {result['seconds']:4} s  {cell}", result.get("why", ""), flush=True)
    if engine is not None:
        engine.end()
    return broken


def _engine(folder: Path, setup: Setup) -> Engine:
    engine = Engine(folder, setup)
    engine.program.wait_for("ready")
    return engine


if __name__ == "__main__":
    sys.exit(main())
