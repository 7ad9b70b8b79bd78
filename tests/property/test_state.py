"""The state against a plain dictionary: whatever is written, deleted, moved and opened again, both say the same."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.route.keys import KeyType
from meander.state.base import Base
from meander.state.holding import Holding
from meander.state.spec import TableSpec
from meander.state.table import Table

TEXT = st.text("aé日\0", max_size=20)
NARROW = KeyType((("k", pa.int64()),))
TEXTS = KeyType((("k", pa.string()),))
PAIRS = KeyType((("k", pa.string()), ("at", pa.timestamp("us"))), leading=1)

VALUES = (
    ("n", pa.int64()), ("x", pa.float64()), ("small", pa.int8()), ("flag", pa.bool_()), ("day", pa.date32()),
    ("s", pa.string()), ("b", pa.binary()), ("d", pa.decimal128(20, 2)), ("f", pa.float32()),
)  # fmt: skip

A_VALUE = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False),
        "small": st.none() | st.integers(-128, 127),
        "flag": st.none() | st.booleans(),
        "day": st.none() | st.dates(),
        "s": st.none() | TEXT,
        "b": st.none() | st.binary(max_size=70),
        "d": st.none() | st.decimals(-1000, 1000, places=2, allow_nan=False),
        "f": st.none() | st.floats(width=32, allow_nan=False),
    }
)

KEYS = {
    "narrow": (NARROW, st.tuples(st.integers(-20, 20))),
    "texts": (TEXTS, st.tuples(TEXT)),
    "pairs": (PAIRS, st.tuples(st.sampled_from(["", "a", "bb"]), st.integers(-9, 9))),
}


@st.composite
def histories(draw):
    """A kind of key, a number of bins, and what happens: batches, releases, moves and reopenings."""
    kind = draw(st.sampled_from(sorted(KEYS)))
    key = KEYS[kind][1]
    writes = st.dictionaries(key, st.none() | A_VALUE, max_size=12)
    batch = st.tuples(st.just("batch"), writes)
    event = st.one_of(batch, batch, batch, st.tuples(st.sampled_from(["move", "release", "reopen"]), st.integers(0, 7)))
    return kind, draw(st.sampled_from([1, 4, 256])), draw(st.lists(event, max_size=12))


def columns_of(type_, keys):
    return [pa.array([key[i] for key in keys], each) for i, each in enumerate(type_.types)]


def contents(holding):
    """What a holding says it has, as a dictionary."""
    table = holding.extract(np.flatnonzero(holding.held))["t"]
    assert not any(table["__deleted"].to_pylist())
    assert table["__bin"].to_pylist() == sorted(table["__bin"].to_pylist())
    names = holding.specs[0].key.names
    columns = (table[name].cast(pa.int64() if name == "at" else table[name].type).to_pylist() for name in names)
    keys = zip(*columns, strict=True)
    values = table.select([name for name, _ in VALUES]).to_pylist()
    found = dict(zip(keys, values, strict=True))
    assert len(found) == table.num_rows
    return found


@examples(30)
@given(histories())
def test_any_history_leaves_what_a_dictionary_has(history):
    kind, bins, events = history
    type_ = KEYS[kind][0]
    spec = TableSpec("t", type_, VALUES)
    with tempfile.TemporaryDirectory() as folder:
        holding = Holding.open(Path(folder) / "a", [spec], bins)
        other = Holding.open(Path(folder) / "b", [spec], bins)
        holding.install(np.arange(bins), [], 0)
        oracle, version = {}, 0
        for what, detail in events:
            if what == "batch":
                table = holding.begin()["t"]
                keys = list(detail)
                rows = table.touch(type_.encode(columns_of(type_, keys)))
                was = [oracle.get(key) for key in keys]
                assert table.present[rows].tolist() == [each is not None for each in was]
                for name, _ in VALUES:
                    assert table.get(name, rows).to_pylist() == [None if each is None else each[name] for each in was]
                kept = [i for i, key in enumerate(keys) if detail[key] is not None]
                for name, each in VALUES:
                    table.set(name, rows[kept], pa.array([detail[keys[i]][name] for i in kept], each))
                table.mark(rows[kept])
                table.discard(rows[[i for i, key in enumerate(keys) if detail[key] is None]])
                version += 1
                delta = table.delta()
                assert delta.schema == spec.schema
                holding.advance(version, {"t": delta})
                for key, value in detail.items():
                    if value is None:
                        oracle.pop(key, None)
                    else:
                        oracle[key] = value
            elif what == "move":
                # Every bin whose number fits goes to the other holding and back; both must say the same.
                mine = np.arange(detail % bins, bins, 3)
                if other.version != version:
                    other.reset()
                other.install(mine, [holding.extract(np.arange(bins))], version)
                holding.install(mine, [other.extract(mine)], version)
                assert other.rows()[mine].tolist() == holding.rows()[mine].tolist()
            elif what == "release":
                mine = np.arange(detail % bins, bins, 5)
                kept = holding.extract(mine)
                holding.release(mine)
                assert not holding.rows()[mine].any()
                assert not holding.bytes()[mine].any()
                holding.install(mine, [kept], version)
            else:
                holding.close()
                holding = Holding.open(Path(folder) / "a", [spec], bins)
                assert holding.version == version
            assert contents(holding) == oracle
            assert holding.rows().sum() == len(oracle)


@examples(40)
@given(st.lists(st.dictionaries(st.integers(0, 60), st.none() | st.text("xy", max_size=400), max_size=40), max_size=25))
def test_texts_that_grow_and_shrink_never_mix(batches):
    spec = TableSpec("t", NARROW, (("s", pa.string()),))
    with tempfile.TemporaryDirectory() as folder:
        base = Base.open(Path(folder), spec, 2)
        base.install([0, 1])
        oracle = {}
        for batch in batches:
            table = Table(base, spec, 2)
            rows = table.touch(NARROW.encode([pa.array(list(batch), pa.int64())]))
            table.set("s", rows, pa.array(list(batch.values()), pa.string()))
            table.mark(rows)
            table.discard(rows[[key % 7 == 3 for key in batch]] if batch else rows)
            base.apply(table.delta())
            oracle |= batch
            oracle = {key: value for key, value in oracle.items() if key % 7 != 3 or key not in batch}
            found = base.extract([0, 1])
            assert dict(zip(found["k"].to_pylist(), found["s"].to_pylist(), strict=True)) == oracle


@examples(50)
@given(
    st.lists(
        st.dictionaries(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(0, 99)), st.booleans(), max_size=30),
        max_size=10,
    ),
    st.integers(-5, 105),
)
def test_due_rows_come_by_time_then_key(batches, upto):
    spec = TableSpec("t", PAIRS, (("n", pa.int64()),), order="at")
    with tempfile.TemporaryDirectory() as folder:
        base = Base.open(Path(folder), spec, 4)
        base.install(range(4))
        alive = set()
        for batch in batches:
            table = Table(base, spec, 4)
            rows = table.touch(PAIRS.encode(columns_of(PAIRS, list(batch))))
            stays = np.array(list(batch.values()), dtype=bool)
            table.mark(rows[stays])
            table.discard(rows[~stays])
            alive = (alive - set(batch)) | {key for key, stay in batch.items() if stay}
            wanted = sorted((at, text) for text, at in alive if at < upto)
            due = table.due(upto)
            found = zip(table.get("at", due).cast(pa.int64()).to_pylist(), table.get("k", due).to_pylist(), strict=True)
            assert list(found) == wanted
            base.apply(table.delta())
            assert base.due(upto).size == len(wanted)
            assert base.keys(base.due(upto)).bins(4).tolist() == (base.due(upto) >> 32).tolist()
