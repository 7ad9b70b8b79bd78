"""Every order once, though its source sends some of them twice, also across a restart with fewer workers."""

import json
import tempfile
from pathlib import Path

import meander as me

folder = Path(tempfile.mkdtemp())
(folder / "orders").mkdir()
spark = me.session()
orders = spark.readStream.schema("id bigint, item string").json(str(folder / "orders"))
unique = me.stream(orders).key_by("id").dedup()
taken = me.sinks.memory("orders")


def run(name, rows, workers):
    """Let these orders arrive, and take in everything that is there."""
    (folder / "orders" / name).write_text("\n".join(json.dumps({"id": id, "item": item}) for id, item in rows))
    query = unique.start(folder / "checkpoint", taken, workers=workers, trigger={"availableNow": True})
    query.await_termination()
    progress = query.last_progress
    print(f"{name}: {progress.rows} rows in, {progress.emitted} out, on {len(query.workers)} workers")


run("1.json", [(1, "tea"), (2, "rice"), (1, "tea"), (3, "salt")], workers=2)
run("2.json", [(3, "salt"), (4, "oil"), (2, "rice"), (4, "oil")], workers=1)

found = sorted((row["batch"], row["id"], row["item"]) for row in taken.to_arrow().to_pylist())
print("batch  id  item")
for batch, id, item in found:
    print(f"{batch:5}  {id:2}  {item}")
assert found == [(0, 1, "tea"), (0, 2, "rice"), (0, 3, "salt"), (1, 4, "oil")]
