"""./dev bench first_minute: from `start` to the first version and the first plan, with nothing compiled and with all.

Each case is a process of its own that counts rows by a text key, waits for the first version, and plans to go from two
workers to three, over 256 and 4096 bins. It runs twice with the same folder for compiled code, empty at first; in
between `meander warm` compiles the rest into it. The first case is one process without Spark; with `--spark` another
is `local[2]`, where Spark's own start is apart. CPU is that of Numba in the driver, split into compiling and loading.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import meander as me

BINS = (256, 4096)
TARGET_VERSION_S, TARGET_PLAN_S = 10.0, 1.0
PATIENCE_S = 600.0


def in_one_process(folder: Path) -> dict[str, float]:
    """The first version and plan of the whole engine in this process."""
    stream = me.stream(me.testing.source("word string")).key_by("word").count()
    began = time.perf_counter()
    with me.testing.harness(stream, bins=BINS[0], checkpoint=str(folder / "checkpoint")) as h:
        h.batch([{"word": f"word {number}"} for number in range(1000)])
        version_s = time.perf_counter() - began
        return {"spark_s": 0.0, "version_s": version_s, **planned(h.query)}


def on_spark(folder: Path) -> dict[str, float]:
    """The same on Spark, which compiles or loads in its own Python processes."""
    rows = folder / "rows"
    rows.mkdir()
    (rows / "0.json").write_text("\n".join(json.dumps({"word": f"word {number}"}) for number in range(1000)))
    began = time.perf_counter()
    spark = me.session("local[2]", app="meander-first-minute", spark__ui__enabled=False)
    spark.sparkContext.setLogLevel("OFF")
    spark_s = time.perf_counter() - began
    words = me.stream(spark.readStream.schema("word string").json(str(rows))).key_by("word").count()
    began = time.perf_counter()
    sink = me.sinks.memory("counts")
    query = words.start(checkpoint=str(folder / "checkpoint"), sink=sink, workers=2, bins=BINS[0])
    try:
        while query.version < 0 and time.perf_counter() < began + PATIENCE_S and query.exception() is None:
            time.sleep(0.02)
        version_s = time.perf_counter() - began
        return {"spark_s": spark_s, "version_s": version_s, **planned(query)}
    finally:
        query.stop()
        spark.stop()


def planned(query: me.Query) -> dict[str, float]:
    """How long the first plan of the query takes, and then one of 4096 bins."""
    began = time.perf_counter()
    query.plan_rescale(3)
    small_s = time.perf_counter() - began
    rng = np.random.default_rng(1)
    load = rng.permutation(1 / np.arange(5, BINS[1] + 5))
    problem = me.Problem(load, load * rng.uniform(0.8, 1.2, BINS[1]), np.arange(BINS[1]) // (BINS[1] // 2), 3, 0.2)
    began = time.perf_counter()
    me.plan(problem, planner="free")
    return {"plan_s": small_s, "large_plan_s": time.perf_counter() - began}


CASES = {"in one process": in_one_process, "on Spark": on_spark}


def child(case: str, folder: Path) -> None:
    """Run a case in this process and print its figures."""
    figures = CASES[case](folder)
    from meander.kernel_cache import variants

    for name, was_compiled in (("compiled", True), ("loaded", False)):
        some = [each.cpu_s for each in variants if each.was_compiled is was_compiled]
        figures |= {name: len(some), f"{name}_cpu_s": sum(some)}
    print(json.dumps(figures))


def run(case: str, cache: Path) -> dict[str, float]:
    """Run a case in a process that keeps compiled code in this folder."""
    with tempfile.TemporaryDirectory(prefix="meander-first-minute-") as folder:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, "--child", case, "--folder", folder],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measured(cases: list[str]) -> list[tuple[str, str, dict[str, float]]]:
    """Every case, with an empty folder of compiled code and with a full one."""
    rows = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="meander-cache-") as cache:
            rows.append((case, "empty", run(case, Path(cache))))
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "meander", "warm"],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            rows[-1][2]["warm_s"] = time.perf_counter() - began
            rows.append((case, "full", run(case, Path(cache))))
    return rows


def table_of(rows: list[tuple[str, str, dict[str, float]]]) -> Table:
    """The figures, a line for each case and state of the cache."""
    columns = ("Spark's start", "first version", "plan, 256 bins", "4096 bins", "compiled", "loaded")
    table = Table("", "compiled code", *columns, title="from start on, seconds; kernels of the driver and their CPU")
    for case, cache, each in rows:
        seconds = (each[name] for name in ("spark_s", "version_s", "plan_s", "large_plan_s"))
        kernels = (f"{each[name]:.0f} in {each[f'{name}_cpu_s']:.1f} s" for name in ("compiled", "loaded"))
        table.add_row(case, cache, *(f"{second:.1f}" for second in seconds), *kernels)
    return table


def main(arguments: list[str] | None = None) -> None:
    """Measure and print; exit code 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="./dev bench first_minute", description=__doc__)
    parser.add_argument("--spark", action="store_true", help="on Spark too")
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.folder)
        return
    rows = measured([*CASES] if options.spark else [*CASES][:1])
    console = Console()
    console.print(table_of(rows))
    missed = []
    for (case, _, empty), (_, _, full) in zip(rows[::2], rows[1::2], strict=True):
        ratio = empty["version_s"] / full["version_s"]
        console.print(f"{case}: the first version takes {ratio:.1f} times as long with nothing compiled")
        late = max(empty[name] - full[name] for name in ("plan_s", "large_plan_s"))
        console.print(
            f"{case}: the first plan takes up to {late:.1f} s longer; 'meander warm' took {empty['warm_s']:.0f} s"
        )
        if empty["version_s"] > TARGET_VERSION_S:
            missed.append(f"{case}: the first version came after {empty['version_s']:.1f} s")
        if late > TARGET_PLAN_S:
            missed.append(f"{case}: the first plan came {late:.1f} s later than a warm one")
    for each in missed:
        console.print(f"[red]missed[/]: {each}")
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
