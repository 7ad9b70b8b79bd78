"""Takings of each shop by the hour, each hour once it is over; what comes too late is kept apart."""

import json
import os
import tempfile
from pathlib import Path

import meander as me
from meander.store.reader import Reader

BATCHES = [
    [("north", "10:05", 20), ("south", "10:20", 5), ("north", "10:50", 10)],
    [("south", "10:40", 15), ("north", "11:10", 7)],  # 10:40 comes after 10:50 has been seen, and counts
    [("south", "12:30", 1)],  # the frontier is now 12:15: the hours from 10 and from 11 are over
    [("north", "10:59", 1000), ("south", "12:31", 1)],  # far too late
]

folder = Path(tempfile.mkdtemp())
(folder / "sales").mkdir()
for number, batch in enumerate(BATCHES, start=1):
    rows = [{"shop": shop, "at": f"2026-01-01 {at}:00", "price": price} for shop, at, price in batch]
    file = folder / "sales" / f"{number}.json"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(file, (number, number))  # Spark takes the oldest file first

spark = me.session()
sales = spark.readStream.schema("shop string, at timestamp, price bigint").option("maxFilesPerTrigger", 1)
stream = me.stream(sales.json(str(folder / "sales"))).key_by("shop")
hours = stream.window("at", "1 hour", lateness="15 minutes", emit="final").aggregate(total=("sum", "price"))
closed = me.sinks.memory("hours")
hours.start(folder / "checkpoint", closed, workers=2, trigger={"availableNow": True}).await_termination()

found = sorted((f"{row['window_start']:%H:%M}", row["shop"], row["total"]) for row in closed.to_arrow().to_pylist())
print("hour   shop   total")
for hour, shop, total in found:
    print(f"{hour}  {shop:5}  {total:5}")
assert found == [("10:00", "north", 30), ("10:00", "south", 20), ("11:00", "north", 7)]

late = [row for rows in Reader.open(folder / "checkpoint").side("late") for row in rows.to_pylist()]
print("too late:", ", ".join(f"{row['shop']} at {row['at']:%H:%M}, {row['price']}" for row in late))
assert [row["price"] for row in late] == [1000]
