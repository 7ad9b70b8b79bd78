"""Timers of a user's operator over random batches: each fires once, in order of time, when the frontier is past it."""

import tempfile

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.operators.custom import Custom
from meander.operators.operator import Operator
from meander.route.schema import schema
from meander.state.declare import KeyedTable, Timers
from naive import Engine, RealState, listed

DDL = "user string, ts timestamp, wait bigint"


class Reminders(Operator):
    """Counts the rows of each user, sets a timer for each row, and says the count when it fires."""

    input = DDL
    output = "user string, at bigint, wait bigint, n bigint"
    state = {  # noqa: RUF012
        "count": KeyedTable(key="user string", value="n bigint"),
        "wake": Timers(key="user string", payload="wait bigint"),
    }
    time = "ts"
    lateness = 5e-6

    def on_batch(self, rows, state, now):
        counts = pa.table({"user": rows["user"]}).group_by("user").aggregate([([], "count_all")])
        users = counts["user"].combine_chunks()
        before = state["count"].get(users)["n"].fill_null(0)
        state["count"].put(users, pc.add(before, counts["count_all"].combine_chunks()))
        state["wake"].set(pc.add(rows["ts"].cast(pa.int64()), rows["wait"]), rows["user"], rows)

    def on_time(self, due, state, now):
        due = due["wake"]
        n = state["count"].get(due["user"])["n"]
        return {"user": due["user"], "at": due["time"].cast(pa.int64()), "wait": due["wait"], "n": n}


rows = st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.integers(0, 40), st.integers(-3, 10))
batches = st.lists(st.lists(rows, max_size=8), max_size=6)


@examples(25)
@given(batches)
def test_timers_fire_once_and_in_order(all_batches):
    operator = Custom(Reminders, schema(DDL), ["user"])
    counts, waiting, newest = {}, {}, None
    with tempfile.TemporaryDirectory() as directory:
        state = RealState(operator, directory)
        engine = Engine(operator, state)
        for batch in [*all_batches, []]:
            columns = list(zip(*batch, strict=True)) or [[]] * 3
            table = pa.table(
                [pa.array(list(c), f.type) for c, f in zip(columns, schema(DDL), strict=True)], schema(DDL)
            )
            found = listed(engine.batch(table).rows)
            frontier = None if newest is None else newest - 5
            due = sorted((time, user) for user, time in waiting if frontier is not None and time < frontier)
            assert found == [(user, time, waiting.pop((user, time)), counts[user]) for time, user in due]
            # Of two rows that set the same timer the later one in order of time, then of all columns, counts.
            for user, ts, wait in sorted(batch, key=lambda row: (row[1], row[0], row[2])):
                counts[user] = counts.get(user, 0) + 1
                waiting[user, ts + wait] = wait
                newest = ts if newest is None else max(newest, ts)
        state.holding.close()
