"""Sensors that have fallen silent, noticed by a plain Python function with a timeout."""

import json
import os
import tempfile
from pathlib import Path

import meander as me

BATCHES = [
    [("attic", "10:00", 21.5), ("cellar", "10:00", 9.0), ("attic", "10:04", 21.0)],
    [("cellar", "10:06", 9.5), ("cellar", "10:11", 10.0), ("porch", "10:12", 3.0)],
    [("cellar", "10:16", 10.0), ("attic", "10:18", 19.0)],  # the attic is back
]

folder = Path(tempfile.mkdtemp())
(folder / "readings").mkdir()
for number, batch in enumerate(BATCHES):
    rows = [{"sensor": sensor, "at": f"2026-01-01 {at}:00", "celsius": celsius} for sensor, at, celsius in batch]
    file = folder / "readings" / f"{number}.json"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    os.utime(file, (number, number))  # Spark takes the oldest file first


def watch(sensor, rows, state):
    """Say who has been silent for five minutes, and who is back."""
    if state.timed_out:
        state.update(is_silent=True)
        yield {"sensor": sensor, "what": "silent", "at": state.last}
        return
    if state.is_silent:
        yield {"sensor": sensor, "what": "back", "at": rows[0].at}
    state.update(last=rows[-1].at, is_silent=False)


spark = me.session()
readings = spark.readStream.schema("sensor string, at timestamp, celsius double").option("maxFilesPerTrigger", 1)
stream = me.stream(readings.json(str(folder / "readings"))).key_by("sensor")
notices = stream.map_with_state(
    watch, state="last timestamp, is_silent boolean", output="sensor string, what string, at timestamp", timeout="5m"
)
sink = me.sinks.memory("notices")
notices.start(folder / "checkpoint", sink, workers=2, trigger={"availableNow": True}).await_termination()
found = sorted((f"{row['at']:%H:%M}", row["sensor"], row["what"]) for row in sink.to_arrow().to_pylist())
for at, sensor, what in found:
    print(f"{at} {sensor:6} {what}")
assert found == [("10:04", "attic", "silent"), ("10:12", "porch", "silent"), ("10:18", "attic", "back")]
