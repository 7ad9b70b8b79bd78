"""Counts without Spark: any stream, any kind of key, any cut into batches, equal to a recount."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import meander as me
from in_process import emitted, fed
from keys import KEYS, random_rows
from streams import by_batch, cut, recounted, tuples


def counted(schema, *key):
    return me.stream(me.testing.source(schema)).key_by(*key).count()


@pytest.mark.parametrize(
    ("kind", "bins", "workers"),
    [("bigint", 256, 2), ("string", 16, 2), ("tuple", 4096, 2), ("date", 2, 2), ("binary", 1, 1)],
)
def test_counts_equal_a_recount(kind, bins, workers):
    rng = random.Random(f"{kind} {bins}")
    key = list(KEYS[kind])
    rows = random_rows(kind, rng.randint(300, 2000), rng)
    batches = cut(rows, rng.randint(4, 7), rng)
    batches.insert(rng.randrange(len(batches)), rows.slice(0, 0))
    with fed(counted(rows.schema, *key), batches, bins=bins, workers=workers, snapshot_every=3) as h:
        expected = recounted(batches, key)
        found = by_batch(pa.Table.from_pylist(emitted(h)), key)
        assert {number: each for number, each in enumerate(expected) if each} == found
        total = {each: tuples(rows, key).count(each) for each in set(tuples(rows, key))}
        assert {tuple(row[name] for name in key): row["count"] for row in h.latest(*key)} == total
        assert {tuple(row[name] for name in key): row["count"] for row in h.state()} == total
        assert sum(progress.rows for progress in h.query.recent_progress) == rows.num_rows
        assert h.query.version == len(batches) - 1


def test_another_cut_of_the_same_stream_ends_the_same():
    rng = random.Random(3)
    rows = random_rows("string", 1500, rng)
    ends = []
    for batches in (1, 6):
        with fed(counted(rows.schema, "word"), cut(rows, batches, rng)) as h:
            ends.append({row["word"]: row["count"] for row in h.latest("word")})
    assert ends[0] == ends[1]
    assert sum(ends[0].values()) == 1500


def test_a_batch_too_large_for_one_hand_over_goes_in_parts():
    rng = random.Random(31)
    rows = pa.table({"word": [f"{rng.randrange(4000):>70}" for _ in range(20_000)]})
    batches = [rows.slice(0, 12_000), rows.slice(12_000, 10), rows.slice(12_010)]
    stream = counted(rows.schema, "word").key_by().aggregate(total=("sum", "count"))
    with fed(stream, batches, bins=64, hand_over_bytes=1 << 16) as h:
        assert [progress.rows for progress in h.query.recent_progress] == [12_000, 10, 7_990]
        expected = recounted(batches, ["word"])
        total = {each: n for found in expected for each, n in found.items()}
        assert {(row["word"],): row["count"] for row in h.state(0)} == total
        # Every update of a count is a row for the sum.
        sums = [sum(found.values()) for found in expected]
        assert [row["total"] for row in h.output()] == [sum(sums[: at + 1]) for at in range(3)]
