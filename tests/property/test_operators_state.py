"""The same operators on the real tables and on dictionaries: equal answers and equal state, batch after batch."""

import tempfile

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.dedup import Dedup
from meander.operators.fold import Fold
from meander.operators.map_state import MapWithState
from meander.operators.top_k import TopK
from meander.operators.window import window
from naive import Engine, NaiveState, RealState, listed

STAMP = pa.timestamp("us", tz="UTC")
BINS = 8
INPUT = pa.schema([
    ("user", pa.string()), ("day", pa.date32()), ("ts", STAMP), ("n", pa.int64()), ("small", pa.int16()),
    ("x", pa.float32()), ("yes", pa.bool_()), ("raw", pa.binary()),
])  # fmt: skip

rows = st.tuples(
    st.sampled_from(["ann", "bob", "", "a longer name than eight bytes"]),
    st.integers(-3, 3),
    st.integers(0, 90).map(lambda second: second * 1_000_000),
    st.none() | st.integers(-5, 5),
    st.none() | st.integers(-300, 300),
    st.none() | st.floats(width=32),
    st.none() | st.booleans(),
    st.none() | st.binary(max_size=12),
)
batches = st.lists(st.lists(rows, max_size=15), max_size=4)


def forgetful(rows, state):
    """Sums that are forgotten when they are even."""
    sums = np.bincount(rows["__group"], weights=rows["n"].fill_null(0), minlength=state.num_rows).astype(int)
    sums += state["total"].fill_null(0).to_numpy()
    return {"total": pa.array(sums, mask=sums % 2 == 0)}, {"user": state["user"], "total": sums}


STATE = "ts timestamp, small smallint, x float, yes boolean, raw binary, total bigint"


def keeping(key, rows, state):
    """The last values of a key, forgotten when its total is even."""
    total = (state.total or 0) + sum(row.n or 0 for row in rows)
    last = rows[-1]
    state.update(ts=last.ts, small=last.small, x=last.x, yes=last.yes, raw=last.raw, total=total)
    yield key[0], state.ts, state.small, state.x, state.yes, state.raw, total
    if total % 2 == 0:
        state.clear()


EVERY = {
    f"{function}_{column}": (function, column)
    for function in ("min", "max", "first", "last", "count")
    for column in ("ts", "n", "small", "x", "yes", "raw")
}
for function, options in {"count_distinct": (), "approx_count_distinct": (), "collect_list": ({"limit": 3},),
                          "collect_set": ({"limit": 3},)}.items():  # fmt: skip
    EVERY |= {f"{function}_{column}": (function, column, *options) for column in ("ts", "n", "x", "yes", "raw")}
EVERY |= {"variance": ("variance", "small"), "stddev_pop": ("stddev_pop", "n"), "any": ("any", "yes")}
STAGES = [
    Count(INPUT, ["user", "day"]),
    Count(INPUT, ["day"]),
    Aggregate(INPUT, ["user"], EVERY | {"sum": ("sum", "small"), "mean": ("mean", "x")}, by="ts"),
    Dedup(INPUT, ["day", "user"]),
    Dedup(INPUT, ["user"], time="ts", within="20s"),
    TopK(INPUT, ["day"], 2, "x"),
    TopK(INPUT, ["user"], 2, "n", identity=["day"], largest=False),
    window(INPUT, ["user"], time="ts", size="10s", slide="4s", lateness="15s", emit="final"),
    window(INPUT, ["day"], time="ts", gap="5s", lateness="15s", named=EVERY, by="ts"),
    Fold(INPUT, ["user"], forgetful, "total bigint", "user string, total bigint"),
    MapWithState(INPUT, ["user", "day"], keeping, STATE, f"user string, {STATE}"),
]


def content(state):
    return {name: sorted(map(repr, (key + values for key, values in rows.items())))
            for name, rows in state.committed.items()}  # fmt: skip


def table(batch):
    columns = list(zip(*batch, strict=True)) or [[]] * len(INPUT)
    days = pa.array(list(columns[1]), pa.int32()).cast(pa.date32())
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, INPUT, strict=True) if f.name != "day"]
    return pa.table([arrays[0], days, *arrays[1:]], schema=INPUT)


@examples(20)
@given(st.sampled_from(STAGES), batches, st.integers(1, 2))
def test_real_tables_and_dictionaries_agree(operator, all_batches, parts):
    with tempfile.TemporaryDirectory() as directory:
        real, naive = RealState(operator, directory, BINS), NaiveState(operator, BINS)
        one, other = Engine(operator, real, parts), Engine(operator, naive)
        for batch in all_batches:
            mine, theirs = one.batch(table(batch)), other.batch(table(batch))
            for a, b in ((mine.rows, theirs.rows), (mine.late, theirs.late)):
                assert sorted(map(repr, listed(a))) == sorted(map(repr, listed(b)))
            if not isinstance(operator, TopK) or parts == 1:
                assert real.content() == content(naive)
        real.holding.close()
