"""A multimap against a plain dictionary of lists, over many batches and moves."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.state.declare import Multimap
from meander.state.holding import Holding

DECLARED = Multimap(key="k string", value="at bigint, s string", time="at")
KEYS = st.sampled_from(["", "a", "b", "cc"])

APPEND = st.tuples(
    st.just("append"), st.lists(st.tuples(KEYS, st.integers(0, 50), st.none() | st.text("z", max_size=9)))
)
DROP = st.tuples(st.just("drop"), st.integers(0, 50))
DELETE = st.tuples(st.just("delete"), st.lists(KEYS, max_size=3))
COMMIT = st.tuples(st.just("commit"), st.none())


@examples(60)
@given(st.lists(APPEND | DROP | DELETE | COMMIT, max_size=14))
def test_a_multimap_has_what_a_dictionary_of_lists_has(events):
    with tempfile.TemporaryDirectory() as folder:
        holding = Holding.open(Path(folder), DECLARED.specs("m"), 4)
        holding.install(range(4), [], 0)
        tables = holding.begin()
        multimap = DECLARED.view("m", tables)
        oracle = {}
        for what, detail in events:
            if what == "append":
                keys, at, texts = ([row[i] for row in detail] for i in range(3))
                rows = pa.table({"at": pa.array(at, pa.int64()), "s": pa.array(texts, pa.string())})
                multimap.append(pa.array(keys, pa.string()), rows)
                for key, *row in detail:
                    oracle.setdefault(key, []).append(tuple(row))
            elif what == "drop":
                before = sum(map(len, oracle.values()))
                oracle = {key: [row for row in rows if row[0] >= detail] for key, rows in oracle.items()}
                assert multimap.drop_before(detail) == before - sum(map(len, oracle.values()))
            elif what == "delete":
                multimap.delete(pa.array(detail, pa.string()))
                oracle = {key: rows for key, rows in oracle.items() if key not in detail}
            else:
                holding.advance(holding.version + 1, {name: table.delta() for name, table in tables.items()})
                assert holding.bases["m"].rows_of(range(4)).sum() == sum(map(len, oracle.values()))
                tables = holding.begin()
                multimap = DECLARED.view("m", tables)
            wanted = ["cc", "a", "", "b", "missing"]
            which, rows = multimap.get(pa.array(wanted))
            assert (np.diff(which) >= 0).all()
            for k, key in enumerate(wanted):
                mine = rows.filter(pa.array(which == k)).to_pylist()
                found = [(row["at"], row["s"]) for row in mine]
                assert Counter(found) == Counter(oracle.get(key, []))
                assert [row[0] for row in found] == sorted(row[0] for row in found)
