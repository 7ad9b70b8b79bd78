"""Advertisements and the clicks on them, whichever comes first; those that nobody clicked on in time come alone."""

import json
import os
import tempfile
from pathlib import Path

import meander as me

SHOWN = [[("a1", "ann", "10:00"), ("a2", "bob", "10:01")], [("a3", "ann", "10:04")], [("a4", "cid", "10:30")]]
CLICKS = [
    [("ann", "10:02", "tea")],
    [("ann", "10:06", "oil"), ("bob", "10:14", "tea")],  # bob needed 13 minutes
    [("cid", "10:29", "rice")],  # before the advertisement was shown: not because of it
]


def read(name, schema, batches):
    """A stream of these rows, one file to a batch."""
    (folder / name).mkdir()
    for number, batch in enumerate(batches, start=1):
        rows = [dict(zip((each.split()[0] for each in schema.split(", ")), row, strict=True)) for row in batch]
        rows = [{**row, "at": f"2026-01-01 {row['at']}:00"} for row in rows]
        file = folder / name / f"{number}.json"
        file.write_text("\n".join(json.dumps(row) for row in rows))
        os.utime(file, (number, number))  # Spark takes the oldest file first
    return me.stream(spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder / name)))


spark, folder = me.session(), Path(tempfile.mkdtemp())
shown = read("shown", "ad string, user string, at timestamp", SHOWN)
clicks = read("clicks", "user string, at timestamp, item string", CLICKS)

# A click counts up to ten minutes after the advertisement, never before it.
both = shown.join(clicks, on="user", within=(0, "10 minutes"), how="left", lateness="30 minutes")
found = me.sinks.memory("found")
both.start(folder / "checkpoint", found, workers=2, trigger={"availableNow": True}, at_end="close").await_termination()

rows = sorted(found.to_arrow().to_pylist(), key=lambda row: (row["ad"], str(row["at_right"])))
print("shown  to   clicked on")
for row in rows:
    print(f"{row['ad']:5}  {row['user']}  {row['item'] or '-'}")
assert [(row["ad"], row["item"]) for row in rows] == [
    ("a1", "tea"), ("a1", "oil"), ("a2", None), ("a3", "oil"), ("a4", None)
]  # fmt: skip
