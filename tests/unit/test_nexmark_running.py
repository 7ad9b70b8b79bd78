"""Migrations as users write them, what stands at the end of a run, and how it is written."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.errors import InvalidOption
from meander_lab.nexmark import results
from meander_lab.nexmark.running import ScheduledMove, final_rows, quarter


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("batched@50%", ScheduledMove("batched", 0.5)),
        (" fluid@12.5%:3 ", ScheduledMove("fluid", 0.125, 3)),
        ("all_at_once@0%", ScheduledMove("all_at_once", 0.0)),
        ("matching@100%:1", ScheduledMove("matching", 1.0, 1)),
    ],
)
def test_a_migration_is_a_schedule_a_moment_and_maybe_a_number_of_workers(text, wanted):
    assert ScheduledMove.of(text) == wanted


@pytest.mark.parametrize("text", ["batched", "batched@50", "@50%", "batched@101%", "batched@50%:", "batched@50%:x", ""])
def test_a_migration_that_cannot_be_read_is_named(text):
    with pytest.raises(InvalidOption, match=r"write a schedule and when, as in batched@50%"):
        ScheduledMove.of(text)


def test_an_unknown_schedule_is_named_with_those_there_are():
    with pytest.raises(InvalidOption, match="there is no schedule 'slow'; there are: .*fluid"):
        ScheduledMove.of("slow@10%")


@given(st.integers(2, 9), st.integers(1, 8))
def test_a_quarter_is_half_the_bins_of_half_the_workers_and_goes_to_the_other_half(workers, each):
    owner = [bin_ % workers for bin_ in range(workers * each * 2)]
    targets = quarter(owner)
    givers = {owner[bin_] for bin_ in targets}
    assert givers == set(range(workers // 2))
    assert set(targets.values()) <= set(range(workers // 2, workers))
    for giver in givers:
        assert sum(owner[bin_] == giver for bin_ in targets) == each
    if workers % 2 == 0:
        assert len(targets) * 4 == len(owner)


def test_one_worker_alone_has_nobody_to_give_to():
    with pytest.raises(InvalidOption, match="--workers 2"):
        quarter([3] * 8)


SCHEMA = pa.schema({"user": pa.string(), "item": pa.int64(), "n": pa.int64()})


def emitted(*rows: tuple[int, str, int, int]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(["batch", "user", "item", "n"], columns, strict=True)))


def test_rows_of_a_query_without_updates_all_stand():
    rows = final_rows(emitted((1, "b", 1, 5), (0, "a", 2, 5), (1, "b", 1, 5)), None, SCHEMA)
    assert rows.to_pydict() == {"user": ["a", "b", "b"], "item": [2, 1, 1], "n": [5, 5, 5]}


def test_of_updates_those_of_the_newest_version_of_each_key_stand():
    rows = emitted((0, "a", 1, 1), (0, "b", 1, 1), (2, "a", 1, 7), (2, "a", 2, 8), (1, "a", 9, 9))
    assert final_rows(rows, ("user",), SCHEMA).to_pylist() == [
        {"user": "a", "item": 1, "n": 7},
        {"user": "a", "item": 2, "n": 8},
        {"user": "b", "item": 1, "n": 1},
    ]


def test_no_rows_are_no_rows():
    assert final_rows(pa.table({"batch": pa.array([], pa.int64())}), ("user",), SCHEMA) == SCHEMA.empty_table()


def test_results_are_json_lines_with_times_as_the_input_had_them():
    moment = dt.datetime(2015, 7, 15, 0, 0, 3, 250_000, tzinfo=dt.UTC)
    rows = pa.table(
        {
            "dateTime": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("90.800"), None], pa.decimal128(23, 3)),
            "name": ["é", None],
        }
    )
    for written, time in (("text", "2015-07-15T00:00:03.250Z"), ("milliseconds", 1436918403250)):
        out = io.StringIO()
        results.write(rows, out, written)
        first, second = (json.loads(line) for line in out.getvalue().splitlines())
        assert first == {"dateTime": time, "price": 90.8, "name": "é"}
        assert second == {"dateTime": None, "price": None, "name": None}
