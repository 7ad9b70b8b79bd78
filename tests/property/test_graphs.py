"""Random graphs of operators against plain Python that goes through the same rows version by version.

Whatever happens meanwhile: bins move, workers come, go and are lost, drivers start again, rows come in waves.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

import meander as me
from effort import examples

COLUMNS = "user string, n bigint, ts timestamp"
SECOND = 1_000_000
SIZE, LATENESS, WITHIN, DELAY = 10 * SECOND, 3 * SECOND, 8 * SECOND, 4 * SECOND
OPERATORS = ("total", "window", "join", "union", "balance")
ACTIONS = ("nothing", "rescale", "move", "lose", "restart", "idle")


def stamp(us):
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


def micros(rows):
    return Counter((row["user"], row["n"], round(row["ts"].timestamp() * SECOND)) for row in rows)


# --- the streams ---------------------------------------------------------------------------------


class Balance(me.Operator):
    """What a user has: left rows add, right ones take away; a row again some seconds after every right one."""

    input = (COLUMNS, COLUMNS)
    output = COLUMNS
    time = ("ts", "ts")
    lateness = "3s"
    state = {  # noqa: RUF012
        "has": me.KeyedTable(key="user string", value="n bigint"),
        "later": me.Timers(key="user string"),
    }

    def on_batch(self, left, right, state, now):
        away = pc.negate(right["n"])
        rows = pa.table(
            {
                "user": pa.chunked_array([left["user"], right["user"]]),
                "n": pa.chunked_array([left["n"], away]),
                "ts": pa.chunked_array([left["ts"], right["ts"]]),
            }
        )
        if len(right):
            state["later"].set(pc.add(right["ts"].cast("int64"), DELAY), right["user"])
        sums = rows.group_by("user").aggregate([("n", "sum"), ("ts", "max")])
        users = sums["user"].combine_chunks()
        before = state["has"].get(users)["n"].fill_null(0)
        has = pc.add(sums["n_sum"].combine_chunks(), before)
        state["has"].put(users, pa.table({"n": has}))
        return pa.table({"user": users, "n": has, "ts": sums["ts_max"]})

    def on_time(self, due, state, now):
        later = due["later"]
        return pa.table({"user": later["user"], "n": pa.array([0] * len(later), pa.int64()), "ts": later["time"]})


def built(kind, inputs):
    """An operator of this kind over these streams, with the columns that all of them have."""
    first, second = (inputs[0], inputs[-1])
    if kind == "total":
        return first.key_by("user").aggregate(n=("sum", "n"), ts=("max", "ts")).select("user", "n", "ts")
    if kind == "window":
        closed = first.key_by("user").window("ts", "10s", lateness="3s", emit="final").aggregate(n=("sum", "n"))
        return closed.key_by("user").flat_map(lambda row: [(row.user, row.n, row.window_end)], output=COLUMNS)
    if kind == "join":
        return first.join(second, on="user", within="8s", lateness="3s").select("n", "user", "ts")
    if kind == "union":
        both = first.union(second.select("ts", "n", "user"))
        return both.key_by("user").aggregate(n=("sum", "n"), ts=("max", "ts"))
    return first.key_by("user").connect(second.key_by("user")).process(Balance)


# --- the same in plain Python --------------------------------------------------------------------


@dataclass
class Model:
    """An operator over rows (user, n, us), one version after the other."""

    kind: str
    inputs: list
    frontier: int | None = None
    newest: dict = field(default_factory=dict)
    kept: list = field(default_factory=lambda: [[], []])
    sums: Counter = field(default_factory=Counter)
    latest: dict = field(default_factory=dict)
    timers: set = field(default_factory=set)

    def step(self, sides):
        """What it emits for the rows of each input."""
        answer = getattr(self, self.kind)(*sides)
        for side, rows in enumerate(sides):
            for _, _, us in rows:
                self.newest[side] = max(us, self.newest.get(side, us))
        if len(self.newest) == len(sides) and self.kind in ("window", "join", "balance"):
            reached = min(self.newest.values()) - LATENESS
            self.frontier = reached if self.frontier is None else max(self.frontier, reached)
        return answer

    def total(self, rows):
        for user, n, us in rows:
            self.sums[user] += n
            self.latest[user] = max(us, self.latest.get(user, us))
        return [(user, self.sums[user], self.latest[user]) for user in {user for user, _, _ in rows}]

    def union(self, left, right):
        return self.total([*left, *right])

    def window(self, rows):
        over = [at for at in self.sums if self.frontier is not None and at[1] <= self.frontier]
        closed = [(user, self.sums.pop((user, end)), end) for user, end in over]
        for user, n, us in rows:
            end = us // SIZE * SIZE + SIZE
            if self.frontier is None or end > self.frontier:
                self.sums[user, end] += n
        return closed

    def join(self, left, right):
        pairs = []
        for side, rows in enumerate((left, right)):
            for row in rows:
                if self.frontier is None or row[2] >= self.frontier:
                    self.kept[side].append(row)
                    for other in self.kept[1 - side]:
                        if row[0] == other[0] and abs(row[2] - other[2]) <= WITHIN:
                            pairs.append(row if side == 0 else other)
        return pairs

    def balance(self, left, right):
        due = {each for each in self.timers if self.frontier is not None and each[1] < self.frontier}
        self.timers -= due
        answer = [(user, 0, us) for user, us in due]
        self.timers |= {(user, us + DELAY) for user, _, us in right}
        latest = {}
        for sign, rows in ((1, left), (-1, right)):
            for user, n, us in rows:
                self.sums[user] += sign * n
                latest[user] = max(us, latest.get(user, us))
        return answer + [(user, self.sums[user], us) for user, us in latest.items()]


def expected(models, versions):
    """What the last operator emits in each version."""
    outputs = []
    for sources in versions:
        emitted = {}

        def rows_of(at, sources=sources, emitted=emitted):
            if at < 0:
                return sources[~at]
            if at not in emitted:
                model = models[at]
                sides = 1 if model.kind in ("total", "window") else 2
                inputs = [model.inputs[0], model.inputs[-1]][:sides]
                emitted[at] = model.step([rows_of(each) for each in inputs])
            return emitted[at]

        outputs.append(Counter(rows_of(len(models) - 1)))
    return outputs


# --- the test ------------------------------------------------------------------------------------

rows = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 9)), max_size=4)
batches = st.lists(st.tuples(rows, rows, st.sampled_from(ACTIONS)), min_size=2, max_size=5)


@st.composite
def graphs(draw):
    """Operators, each with a kind and the two it may read: those before it, or ~ the number of a source."""
    count = draw(st.integers(2, 4))
    return [
        (draw(st.sampled_from(OPERATORS)), draw(st.tuples(*[st.integers(max(-2, at - 3), at - 1)] * 2)))
        for at in range(count)
    ]


def act(h, action, number):
    workers = sorted(h.driver.coordinator.record.workers)
    if action == "rescale":
        h.rescale(number % 3 + 1)
    elif action == "move":
        operator = number % len(h.driver.operators)
        h.move({number % 4: workers[-1], 3: workers[0]}, operator=operator)
    elif action == "lose":
        h.lose(workers[0], replace=number % 2 == 0 or len(workers) == 1)
    elif action == "restart":
        h.restart()
    elif action == "idle":
        h.idle()


@examples(30)
@given(graphs(), batches, st.booleans())
def test_any_graph_emits_what_plain_python_does_in_every_version(operators, steps, in_waves):
    sources = [me.testing.source(COLUMNS) for _ in range(2)]
    streams = {~at: me.stream(each) for at, each in enumerate(sources)}
    for at, (kind, inputs) in enumerate(operators):
        streams[at] = built(kind, [streams[each] for each in inputs])
    read = streams[len(operators) - 1].flow.sources
    versions = []
    with me.testing.harness(streams[len(operators) - 1], 2, 4) as h:
        if in_waves:  # a user may not ask for so few bytes
            object.__setattr__(h.driver.settings, "hand_over_bytes", 100)
        for number, (*sides, action) in enumerate(steps):
            times = [[(user, n, (5 * number + late) * SECOND) for user, n, late in side] for side in sides]
            h.batch(brought(sources, read, times))
            versions += [([], [])] * (h.query.version - len(versions))
            versions.append(times)
            act(h, action, number)
        h.idle()
        versions += [([], [])] * (h.query.version + 1 - len(versions))
        output = [micros(table.to_pylist()) for _, table in sorted(h.sink.versions.items())]
    models = [Model(kind, inputs) for kind, inputs in operators]
    assert output == expected(models, versions)


def brought(sources, read, sides):
    """The rows of the sources that the stream reads; two that are joined at once are one source made of both."""
    known = {id(each) for source in read for each in (source, *getattr(source, "sources", ()))}
    return {
        source: [{"user": user, "n": n, "ts": stamp(us)} for user, n, us in rows]
        for source, rows in zip(sources, sides, strict=True)
        if id(source) in known
    }
