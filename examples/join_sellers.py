"""Auctions with their seller's name, whichever comes first: an operator of one's own (after NEXMark's query 3)."""

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import meander as me

AUCTIONS, SELLERS = ["1,7\n2,8\n3,7", "4,7\n5,9", "6,8"], ["7,ann", "6,zoe", "8,bob"]  # one text to a batch


class Named(me.Operator):
    """Auctions with the name of their seller; those whose seller is not known yet wait for him."""

    input = ("auction bigint, seller bigint", "id bigint, name string")
    output = "auction bigint, name string"
    state = {  # noqa: RUF012
        "sellers": me.KeyedTable(key="id bigint", value="name string"),
        "waiting": me.Multimap(key="seller bigint", value="auction bigint"),
    }

    def on_batch(self, auctions, sellers, state, now):
        """Take both sides in, then let the auctions of all sellers at hand that are known go."""
        state["sellers"].put(sellers["id"], sellers)
        state["waiting"].append(auctions["seller"], auctions)
        keys = pc.unique(pa.concat_arrays([auctions["seller"], sellers["id"]]))
        keys = keys.filter(state["sellers"].found(keys))
        which, waiting = state["waiting"].get(keys)
        state["waiting"].delete(keys)
        return pa.table({"auction": waiting["auction"], "name": state["sellers"].get(keys.take(which))["name"]})


spark, folder, sides = me.session(), Path(tempfile.mkdtemp()), []
for schema, key, batches in zip(Named.input, ("seller", "id"), (AUCTIONS, SELLERS), strict=True):
    (folder / key).mkdir()
    for number, lines in enumerate(batches, start=1):
        (folder / key / f"{number}.csv").write_text(lines)
        os.utime(folder / key / f"{number}.csv", (number, number))  # Spark takes the oldest file first
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(folder / key))
    sides.append(me.stream(rows).key_by(key))
named = me.sinks.memory("named")
both = sides[0].connect(sides[1]).process(Named)
both.start(folder / "checkpoint", named, workers=2, trigger={"availableNow": True}).await_termination()
found = sorted((row["batch"], row["auction"], row["name"]) for row in named.to_arrow().to_pylist())
print("batch  auction  seller", *(f"{batch:5}  {auction:7}  {name}" for batch, auction, name in found), sep="\n")
assert found == [(0, 1, "ann"), (0, 3, "ann"), (1, 4, "ann"), (2, 2, "bob"), (2, 6, "bob")]
