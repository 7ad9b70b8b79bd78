"""./dev bench api: functions over keys beside those of Spark, the same result from all, in one run on one machine.

Number and total of the rows of each key, as a function with state: ours as `map_with_state` (plain rows, pandas, Arrow)
and as `fold`, Spark's as `applyInPandasWithState`, `transformWithState` and `transformWithStateInPandas`. 200,000 rows
over 5,000 keys in five batches on `local[2]`, two workers or two shuffle partitions, into memory. A batch's time is
Spark's own `triggerExecution`; figures are medians over the batches after the first, of all rounds, which take turns. A
round before those is not counted: whoever came first would pay for a JVM that has compiled nothing.

Ends with exit code 1 where plain rows are less than five times as fast as Spark, or a result differs. Run it on a quiet
machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import meander as me
from meander_lab.benchmarks import engine_peers as peers
from meander_lab.benchmarks.engine_figures import BenchTarget

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

STATE = "n bigint, total bigint"
OUTPUT = "user string, n bigint, total bigint"
LIMIT = 5.0
PATIENCE_S = 1800

Result = set[tuple[str, int, int]]


@dataclass(frozen=True)
class ApiSizes:
    """How much is measured."""

    rows: int = 200_000
    keys: int = 5_000
    batches: int = 5
    rounds: int = 2


QUICK = ApiSizes(rows=20_000, keys=500, batches=3, rounds=1)


# --- the same function, in every form -----------------------------------------------------------


def plain(user: str, rows: list[Any], state: me.KeyState) -> Iterator[tuple[str, int, int]]:
    """Ours, plain rows."""
    n, total = (state.n or 0) + len(rows), (state.total or 0) + sum(row.price for row in rows)
    state.update(n=n, total=total)
    yield user, n, total


def in_pandas(user: str, rows: Any, state: me.KeyState) -> Iterator[Any]:
    """Ours, as Spark's is written: a frame in, a frame out."""
    import pandas as pd

    n, total = (state.n or 0) + len(rows), (state.total or 0) + int(rows["price"].sum())
    state.update(n=n, total=total)
    yield pd.DataFrame({"user": [user], "n": [n], "total": [total]})


def in_arrow(user: str, rows: Any, state: me.KeyState) -> Iterator[tuple[str, int, int]]:
    """Ours, a table in, tuples out."""
    import pyarrow.compute as pc

    n, total = (state.n or 0) + len(rows), (state.total or 0) + pc.sum(rows["price"]).as_py()
    state.update(n=n, total=total)
    yield user, n, total


def folded(rows: Any, state: Any) -> tuple[Any, Any]:
    """Ours, all keys at once."""
    import numpy as np
    import pyarrow as pa

    group, keys = rows["__group"].to_numpy(), state.num_rows
    n = np.bincount(group, minlength=keys) + state["n"].fill_null(0).to_numpy()
    total = np.bincount(group, rows["price"], keys).astype(np.int64) + state["total"].fill_null(0).to_numpy()
    return pa.table({"n": n, "total": total}), pa.table({"user": state["user"], "n": n, "total": total})


def ours(build: Callable[[Any], Any]) -> Callable[[DataFrame, Path], Result]:
    """A query of ours over all files; `build` makes the stream of a keyed one."""

    def run(rows: DataFrame, folder: Path) -> tuple[peers.Running, Callable[[], Result]]:
        sink = me.sinks.memory()
        stream = build(me.stream(rows).key_by("user"))
        query = stream.start(folder, sink, workers=2, bins=256, trigger={"availableNow": True})
        running = peers.Running.of(rows.sparkSession, query)
        return running, lambda: {(r["user"], r["n"], r["total"]) for r in sink.latest("user")}

    return run


def apply_in_pandas(rows: DataFrame) -> DataFrame:
    """Spark's `applyInPandasWithState`."""

    def function(key: tuple[str], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        n, total = state.get if state.exists else (0, 0)
        for part in parts:
            n, total = n + len(part), total + int(part["price"].sum())
        state.update((n, total))
        yield pd.DataFrame({"user": [key[0]], "n": [n], "total": [total]})

    return rows.groupBy("user").applyInPandasWithState(function, OUTPUT, STATE, "update", "NoTimeout")


def transform(rows: DataFrame) -> DataFrame:
    """Spark's `transformWithState`, on rows."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.kept = handle.getValueState("kept", STATE)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timers: Any) -> Iterator[Row]:  # noqa: N802
            n, total = self.kept.get() if self.kept.exists() else (0, 0)
            for row in rows:
                n, total = n + 1, total + row.price
            self.kept.update((n, total))
            yield Row(user=key[0], n=n, total=total)

        def close(self) -> None:
            pass

    return rows.groupBy("user").transformWithState(Totals(), OUTPUT, "Update", "None")


def transform_in_pandas(rows: DataFrame) -> DataFrame:
    """Spark's `transformWithStateInPandas`."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.kept = handle.getValueState("kept", STATE)

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:  # noqa: N802
            import pandas as pd

            n, total = self.kept.get() if self.kept.exists() else (0, 0)
            for part in rows:
                n, total = n + len(part), total + int(part["price"].sum())
            self.kept.update((n, total))
            yield pd.DataFrame({"user": [key[0]], "n": [n], "total": [total]})

        def close(self) -> None:
            pass

    return rows.groupBy("user").transformWithStateInPandas(Totals(), OUTPUT, "Update", "None")


def sparks(build: Callable[[DataFrame], DataFrame], rocksdb: bool) -> Callable[[DataFrame, Path], Any]:
    """A query of Spark's over all files; `transformWithState` needs RocksDB."""

    def run(rows: DataFrame, folder: Path) -> tuple[peers.Running, Callable[[], Result]]:
        spark = rows.sparkSession
        provider = "RocksDBStateStoreProvider" if rocksdb else "HDFSBackedStateStoreProvider"
        spark.conf.set(peers.STORE, f"{peers.STATE}.{provider}")
        name = f"api_{folder.name.replace('-', '_')}"
        writer = build(rows).writeStream.format("memory").outputMode("update").queryName(name)
        try:
            query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
        finally:
            spark.conf.unset(peers.STORE)

        def result() -> Result:
            last: dict[str, tuple[str, int, int]] = {}
            for row in spark.table(name).collect():
                if row.user not in last or row.n > last[row.user][1]:
                    last[row.user] = (row.user, row.n, row.total)
            spark.catalog.dropTempView(name)
            return set(last.values())

        return peers.Running(query), result

    return run


def mapped(function: Callable[..., Any], rows: str) -> Callable[[DataFrame, Path], Any]:
    """`map_with_state` with this form of rows."""
    return ours(lambda keyed: keyed.map_with_state(function, STATE, OUTPUT, rows=rows))


PLAIN = "ours, map_with_state, plain rows"
SYSTEMS: dict[str, Callable[[DataFrame, Path], Any]] = {
    PLAIN: mapped(plain, "plain"),
    "ours, map_with_state, arrow": mapped(in_arrow, "arrow"),
    "ours, map_with_state, pandas": mapped(in_pandas, "pandas"),
    "ours, fold": ours(lambda keyed: keyed.fold(folded, STATE, OUTPUT)),
    "Spark, applyInPandasWithState": sparks(apply_in_pandas, rocksdb=False),
    "Spark, transformWithState": sparks(transform, rocksdb=True),
    "Spark, transformWithStateInPandas": sparks(transform_in_pandas, rocksdb=True),
}


# --- running ------------------------------------------------------------------------------------


def write(folder: Path, sizes: ApiSizes) -> Result:
    """Write the batches, a file each, and return what has to come out, recounted in NumPy."""
    rng = np.random.default_rng(18)
    users, prices = rng.integers(0, sizes.keys, sizes.rows), rng.integers(0, 1000, sizes.rows)
    for number, part in enumerate(np.array_split(np.arange(sizes.rows), sizes.batches)):
        names = pa.array([f"user-{user}" for user in users[part].tolist()])
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table({"user": names, "price": prices[part]}), file)
        os.utime(file, (number, number))
    n, total = np.bincount(users, minlength=sizes.keys), np.bincount(users, prices, sizes.keys).astype(np.int64)
    return {(f"user-{user}", int(n[user]), int(total[user])) for user in np.flatnonzero(n).tolist()}


def measure(spark: SparkSession, folder: Path, sizes: ApiSizes, console: Console) -> dict[str, list[float]]:
    """The milliseconds of the batches after the first of every system; raises where a result differs."""
    (folder / "rows").mkdir()
    expected = write(folder / "rows", sizes)
    times: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for turn in range(1 + sizes.rounds):
        for at, (name, run) in enumerate(SYSTEMS.items()):
            reader = spark.readStream.schema("user string, price bigint").option("maxFilesPerTrigger", 1)
            checkpoint = folder / f"{turn}-{at}"
            running, result = run(reader.parquet(str(folder / "rows")), checkpoint)
            if not (running.ours.await_termination if running.ours else running.inner.awaitTermination)(PATIENCE_S):
                raise TimeoutError(f"{name} was not done within {PATIENCE_S} s; take a quieter machine, or --quick")
            taken = running.times_ms()
            running.stop()
            if result() != expected or len(taken) != sizes.batches:
                raise RuntimeError(f"{name} gave another result than the recount")
            if turn:
                times[name] += taken[1:]
            counted = "" if turn else ", not counted"
            console.print(f"  {name}: {statistics.median(taken[1:]):,.0f} ms a batch{counted}")
            shutil.rmtree(checkpoint, ignore_errors=True)
    return times


def main() -> int:
    """Run all systems in turn and say which targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes; targets are not for these")
    parser.add_argument("--rounds", type=int, help="how often each system runs, two times by default")
    parser.add_argument("--rows", type=int, help="of all batches, 200,000 by default")
    parser.add_argument("--batches", type=int, help="in how many batches they come, five by default")
    options = parser.parse_args()
    sizes = QUICK if options.quick else ApiSizes()
    asked = {name: getattr(options, name) for name in ("rounds", "rows", "batches")}
    sizes = replace(sizes, **{name: value for name, value in asked.items() if value})
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        spark = peers.session("meander-bench-api")
        try:
            times = measure(spark, Path(folder), sizes, console)
        finally:
            spark.stop()
    middle = {name: statistics.median(each) for name, each in times.items()}
    title = f"{sizes.rows:,} rows over {sizes.keys:,} keys in {sizes.batches} batches"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("system", "ms a batch", "rows/s", "plain rows are"):
        table.add_column(column, justify="left" if column == "system" else "right")
    for name, ms in middle.items():
        rate = sizes.rows / sizes.batches / ms * 1000
        table.add_row(name, f"{ms:,.0f}", f"{rate:,.0f}", f"{ms / middle[PLAIN]:.1f}x")
    console.print(table)
    targets = [
        BenchTarget(f"plain rows / {name}", ms / middle[PLAIN], LIMIT, at_least=True)
        for name, ms in middle.items()
        if name.startswith("Spark")
    ]
    for each in targets:
        console.print(f"{each.what}: {each.measured:.1f}, {each.wanted}: {'met' if each.met else 'missed'}")
    return int(not options.quick and not all(each.met for each in targets))


if __name__ == "__main__":
    sys.exit(main())
