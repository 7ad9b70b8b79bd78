"""Rows of two streams to join, fed in random order, and all their pairs by a nested loop."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

import meander as me
from streams import Feed

ORDERS = pa.schema(
    [("cell", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("order", pa.string()), ("x", pa.float64())]
)
TAXIS = pa.schema([("cell", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("taxi", pa.int64()), ("x", pa.float64())])
SECOND = 1_000_000


def some_rows(rng: random.Random, schema: pa.Schema, count: int, cells: int, seconds: int) -> pa.Table:
    """Rows with a hot cell, at random times, in random order."""
    names = schema.names
    made: dict[str, Any] = {
        "cell": [min(rng.randrange(cells), rng.randrange(cells), rng.randrange(cells)) for _ in range(count)],
        names[1]: [rng.randrange(seconds * SECOND) for _ in range(count)],
        names[2]: [f"o{number}" if names[2] == "order" else number for number in range(count)],
        "x": [rng.random() for _ in range(count)],
    }
    return pa.table([pa.array(made[name]).cast(schema.field(name).type) for name in names], schema=schema)


def all_pairs(orders: pa.Table, taxis: pa.Table, before_s: float, after_s: float, apart: float = 9.0) -> Counter[Any]:
    """Every pair of an order and a taxi of one cell, near enough in time and in x; by looking at all of them."""
    found: Counter[Any] = Counter()
    times = [table.column(1).cast(pa.int64()).to_pylist() for table in (orders, taxis)]
    cells, xs = (
        [table["cell"].to_pylist() for table in (orders, taxis)],
        [table["x"].to_pylist() for table in (orders, taxis)],
    )
    names, numbers = orders["order"].to_pylist(), taxis["taxi"].to_pylist()
    for i in range(orders.num_rows):
        for j in range(taxis.num_rows):
            near = -before_s * SECOND <= times[1][j] - times[0][i] <= after_s * SECOND
            if cells[0][i] == cells[1][j] and near and abs(xs[0][i] - xs[1][j]) <= apart:
                found[cells[0][i], names[i], numbers[j]] += 1
    return found


class Rows:
    """Orders and taxis, and both of them cut into batches."""

    def __init__(self, seed: int, rows: int = 400, batches: int = 8, cells: int = 40) -> None:
        rng = random.Random(seed)
        self.orders, self.taxis = some_rows(rng, ORDERS, rows, cells, 60), some_rows(rng, TAXIS, 2 * rows, cells, 60)
        self.batches = [
            [table.slice(at * len(table) // batches, (at + 1) * len(table) // batches - at * len(table) // batches)
             for at in range(batches)]
            for table in (self.orders, self.taxis)
        ]  # fmt: skip

    def batch(self, number: int) -> dict[str, pa.Table]:
        """The rows of both sides in a batch."""
        return {"left": self.batches[0][number], "right": self.batches[1][number]}


class Case(Rows):
    """Two streams of Spark that are fed batch by batch, and the query that joins them."""

    def __init__(self, spark: Any, folder: Path, seed: int, **options: Any) -> None:
        sizes = {name: options.pop(name) for name in ("rows", "batches", "cells") if name in options}
        super().__init__(seed, **sizes)
        self.spark, self.folder = spark, folder
        self.feeds = [Feed(folder / "orders", ORDERS), Feed(folder / "taxis", TAXIS)]
        self.options = options
        self.sink = me.sinks.memory()

    def start(self, workers: int = 2, **settings: Any) -> Any:
        """Start the query, which waits for its rows."""
        left, right = (me.stream(feed.read(self.spark)) for feed in self.feeds)
        joined = left.join(right, on="cell", **{"within": "10 seconds", "lateness": "2 minutes", **self.options})
        settings = {"bins": 32, "idle_after_s": 0.3, **settings}
        return joined.start(self.folder / "ck", self.sink, workers=workers, **settings)

    def feed(self, *numbers: int) -> None:
        """Let these batches come."""
        for number in numbers:
            for feed, batches in zip(self.feeds, self.batches, strict=True):
                feed.add(batches[number])

    def found(self) -> Counter[Any]:
        """What has come out: cell, order and taxi, with how often each did."""
        rows = self.sink.to_arrow()
        return Counter(zip(*(rows[name].to_pylist() for name in ("cell", "order", "taxi")), strict=True))
