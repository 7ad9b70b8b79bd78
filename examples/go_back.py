"""A checkpoint in your hands: its versions and its state, a copy, a check, and the way back to an older version."""

import tempfile
from pathlib import Path

import meander as me

folder = Path(tempfile.mkdtemp())
words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, bins=16, checkpoint=str(folder / "checkpoint")) as h:
    for text in ("to be", "or not", "to be too", "oops oops oops"):
        h.batch([{"word": word} for word in text.split()])

checkpoint = me.checkpoint(folder / "checkpoint")
for version in checkpoint.versions():
    print(f"version {version.number}: {version.rows} rows, can be gone back to: {version.is_restorable}")
checkpoint.copy_to(folder / "backup")
assert not checkpoint.verify().damaged
oops = checkpoint.to_arrow("count", where="word = 'oops'").to_pylist()
print("the last batch was a mistake:", oops)
print(checkpoint.rollback(to=2, take_over=True))  # nobody can see whether a harness has ended

counts = {row["word"]: row["count"] for row in checkpoint.to_arrow("count").to_pylist()}
assert counts == {"to": 2, "be": 2, "or": 1, "not": 1, "too": 1}
assert me.checkpoint(folder / "backup").to_arrow("count", where="word = 'oops'").to_pylist() == oops
