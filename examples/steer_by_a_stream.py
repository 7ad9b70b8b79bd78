"""Moves as data: a stream of (batch, bin, worker) says who owns which bin from which batch on."""

import tempfile
from pathlib import Path

import meander as me

folder = Path(tempfile.mkdtemp())
for name in ("rows", "control"):
    (folder / name).mkdir()


def add(name, number, text):
    """Let a file appear at once, never half written."""
    (folder / "part").write_text(text)
    (folder / "part").rename(folder / name / f"{number}.json")


spark = me.session()
rows = spark.readStream.schema("user string").json(str(folder / "rows"))
control = spark.readStream.schema("batch long, bin int, worker int").json(str(folder / "control"))

counts = me.sinks.memory("counts")
query = me.stream(rows).key_by("user").count().start(folder / "checkpoint", counts, workers=1, bins=4, control=control)
add("rows", 0, '{"user": "ann"}\n{"user": "bob"}\n')
query.process_all_available()
add("control", 0, "".join(f'{{"batch": 2, "bin": {bin_}, "worker": 1}}\n' for bin_ in (0, 1)))
while not any(event.name == "accepted" for event in query.events):
    pass
for number in (1, 2, 3):
    add("rows", number, '{"user": "ann"}\n{"user": "cid"}\n')
    query.process_all_available()
    print(f"batch {number}: the owners are {query.assignment['0:count']}")
query.stop()
assert query.assignment["0:count"] == [1, 1, 0, 0]
assert {row["user"]: row["count"] for row in counts.latest("user")} == {"ann": 4, "bob": 1, "cid": 3}
